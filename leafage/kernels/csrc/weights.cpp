// Packed weights: memory, sizes, and reading values back.
#include "weights.h"

#include <sys/mman.h>

#include <cstdlib>
#include <mutex>
#include <new>
#include <stdexcept>

#include "weights_pack.h"

namespace leafage {

namespace {

// Weights live in chunks on huge pages: most matrices of a small model are smaller than one huge page, so each
// in an allocation of its own would get none. A chunk goes when the last weight in it goes.
class Arena {
  public:
    static Arena& instance() {
        static Arena arena;
        return arena;
    }

    std::shared_ptr<uint8_t> allocate(size_t bytes) {
        bytes = size_t(round_up(int64_t(bytes), 64));
        std::lock_guard<std::mutex> lock(mutex_);
        std::shared_ptr<uint8_t> chunk = chunk_.lock();
        if (bytes >= kChunk / 2) return map(size_t(round_up(int64_t(bytes), kHugePage)));
        if (!chunk || used_ + bytes > kChunk) {
            chunk = map(kChunk);
            chunk_ = chunk;
            used_ = 0;
        }
        uint8_t* at = chunk.get() + used_;
        used_ += bytes;
        return std::shared_ptr<uint8_t>(chunk, at);
    }

  private:
    static constexpr size_t kHugePage = size_t(2) << 20;
    static constexpr size_t kChunk = size_t(32) << 20;

    static std::shared_ptr<uint8_t> map(size_t bytes) {
        // Untouched pages of a chunk cost nothing; fresh ones are zero, which padded lanes rely on.
        size_t span = bytes + kHugePage;
        void* p = mmap(nullptr, span, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (p == MAP_FAILED) throw std::bad_alloc();
        auto begin = reinterpret_cast<uintptr_t>(p);
        uintptr_t aligned = (begin + kHugePage - 1) / kHugePage * kHugePage;
#if defined(MADV_HUGEPAGE)
        madvise(reinterpret_cast<void*>(aligned), bytes, MADV_HUGEPAGE);
#endif
        return std::shared_ptr<uint8_t>(reinterpret_cast<uint8_t*>(aligned), [p, span](uint8_t*) { munmap(p, span); });
    }

    std::mutex mutex_;
    std::weak_ptr<uint8_t> chunk_;
    size_t used_ = 0;
};

size_t panel_bytes_of(const Format& format, Dtype dtype, int cols) {
    size_t bytes;
    if (dtype == Dtype::F32)
        bytes = size_t(cols) * kPanel * 4;
    else if (dtype == Dtype::F16)
        bytes = size_t(cols) * kPanel * 2;
    else if (dtype == Dtype::BF16)
        bytes = size_t(round_up(cols, 2)) * kPanel * 2;
    else
        bytes = format.scales_at(cols / kGroup - 1, cols / kGroup) + size_t(format.scale_bytes);
    return size_t(round_up(int64_t(bytes), 64));
}

float half_at(const uint8_t* p, int index) {
    uint16_t h;
    std::memcpy(&h, p + 2 * index, 2);
    return f16_to_f32(h);
}

// d and min of each subgroup of a lane's group, as float32 with the roundings of the reference.
// record: its record's scales.
void group_scales(const Format& f, const uint8_t* record, int group, int lane, float d[2], float min[2]) {
    int sub = f.group_of_record(group) * f.subgroups;
    switch (f.scales) {
        case Scales::kNone: break;
        case Scales::kF16: d[0] = half_at(record, sub * kPanel + lane); break;
        case Scales::kF16Min:
            d[0] = half_at(record, lane);
            min[0] = half_at(record + 32, lane);
            break;
        case Scales::kE8M0: {
            uint32_t e = record[sub * kPanel + lane];
            uint32_t bits = e < 2 ? 0x00200000u << e : (e - 1) << 23;  // half of 2^(e - 127)
            std::memcpy(&d[0], &bits, 4);
            break;
        }
        case Scales::kSub8Min:
            d[0] = half_at(record + 256, lane) * float(record[sub * 16 + lane]);
            min[0] = -(half_at(record + 288, lane) * float(record[128 + sub * 16 + lane]));
            break;
        case Scales::kSub4Min:
            for (int h = 0; h < 2; ++h) {
                uint8_t both = record[(sub + h) * 16 + lane];
                d[h] = half_at(record + 256, lane) * float(both & 15);
                min[h] = -(half_at(record + 288, lane) * float(both >> 4));
            }
            break;
        case Scales::kSub16:
            for (int h = 0; h < 2; ++h)
                d[h] = half_at(record + 256, lane) * float(int8_t(record[(sub + h) * 16 + lane]));
            break;
        case Scales::kSub8: d[0] = half_at(record + 128, lane) * float(int8_t(record[sub * 16 + lane])); break;
    }
}

}  // namespace

Dtype dtype_from_name(const std::string& name) {
    for (int i = 0; i < kNumDtypes; ++i)
        if (name == kFormats[i].name) return Dtype(i);
    throw std::invalid_argument("unknown weight type: " + name);
}

size_t file_bytes(Dtype dtype, int rows, int cols) {
    const Format& f = format_of(dtype);
    if (cols % f.block != 0)
        throw std::invalid_argument(std::string(f.name) + " needs a number of columns that is a multiple of " +
                                    std::to_string(f.block) + ", got " + std::to_string(cols));
    return size_t(rows) * size_t(cols / f.block) * size_t(f.block_bytes);
}

std::vector<PackedWeight> pack(const std::vector<RawWeight>& raw, int num_threads) {
    std::vector<PackedWeight> packed(raw.size());
    std::vector<PackJob> jobs;
    for (size_t i = 0; i < raw.size(); ++i) {
        PackedWeight& w = packed[i];
        w.dtype = raw[i].dtype;
        w.rows = raw[i].rows;
        w.cols = raw[i].cols;
        w.panels = int(ceil_div(w.rows, kPanel));
        w.panel_bytes = panel_bytes_of(w.format(), w.dtype, w.cols);
        std::shared_ptr<uint8_t> memory = Arena::instance().allocate(w.nbytes());
        w.data = memory.get();
        w.owner = memory;
        jobs.push_back({&w, memory.get(), raw[i].raw});
    }
    pack_panels(jobs, num_threads);
    return packed;
}

void dequantize_row(const PackedWeight& w, int row, float* out) {
    const uint8_t* panel = w.panel(row / kPanel);
    int lane = row % kPanel;
    if (w.dtype == Dtype::F32) {
        for (int k = 0; k < w.cols; ++k) std::memcpy(out + k, panel + (size_t(k) * kPanel + lane) * 4, 4);
        return;
    }
    if (w.dtype == Dtype::F16) {
        for (int k = 0; k < w.cols; ++k) out[k] = half_at(panel, k * kPanel + lane);
        return;
    }
    if (w.dtype == Dtype::BF16) {
        for (int k = 0; k < w.cols; ++k) {
            uint16_t h;
            std::memcpy(&h, panel + ((size_t(k / 2) * kPanel + lane) * 2 + k % 2) * 2, 2);
            out[k] = bf16_to_f32(h);
        }
        return;
    }
    const Format& f = w.format();
    const int groups = w.groups();
    float value[256];  // of a code
    for (int code = 0; code < 256; ++code)
        value[code] = f.table == Table::kIQ4     ? float(kIQ4Values[code & 15])
                      : f.table == Table::kMXFP4 ? float(kMXFP4Values[code & 15])
                                                 : float(code - f.offset);
    for (int g = 0; g < groups; ++g) {
        float d[2], min[2];
        group_scales(f, panel + f.scales_at(g, groups), g, lane, d, min);
        uint32_t quads[8];
        read_codes(f.bits, panel + f.codes_at(g), lane, quads);
        for (int j = 0; j < 8; ++j) {
            int h = f.subgroups == 2 ? j / 4 : 0;
            for (int t = 0; t < 4; ++t) {
                float product = d[h] * value[quads[j] >> (8 * t) & 255];
                *out++ = f.has_min ? product + min[h] : product;
            }
        }
    }
}

}  // namespace leafage
