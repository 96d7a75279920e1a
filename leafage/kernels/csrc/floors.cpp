// What the machine can do at best: memory bandwidth and int8 multiply-add rate. `leafage bench` prints its
// results as a share of these, so that a number means the same on another machine.
#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <new>
#include <stdexcept>
#include <string>
#include <utility>

#include "kernels.h"
#include "linear_amx.h"

#if defined(__x86_64__)
#include <immintrin.h>
#if defined(LEAFAGE_AMX)
#include "amx_tiles.h"
#endif
#elif defined(__ARM_FEATURE_DOTPROD)
#include <arm_neon.h>
#endif

namespace nb = nanobind;

namespace leafage {

namespace {

double now() {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Results go here so that no loop is optimized away.
volatile uint64_t sink;

class HugeBuffer {
  public:
    explicit HugeBuffer(size_t bytes) : bytes_(round_up(int64_t(bytes), 2 << 20)) {
        data_ = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (data_ == MAP_FAILED) throw std::bad_alloc();
#if defined(MADV_HUGEPAGE)
        madvise(data_, bytes_, MADV_HUGEPAGE);  // a wish: without it the figure is a few percent lower
#endif
    }
    ~HugeBuffer() { munmap(data_, bytes_); }
    HugeBuffer(const HugeBuffer&) = delete;
    HugeBuffer& operator=(const HugeBuffer&) = delete;
    uint8_t* data() const { return static_cast<uint8_t*>(data_); }
    size_t size() const { return bytes_; }

  private:
    size_t bytes_;
    void* data_;
};

// Eight streams of sums: enough loads in flight to saturate a core's line buffers. bytes % 512 == 0.
uint64_t read_plain(const uint8_t* p, size_t bytes) {
    uint64_t sum[8] = {};
    for (size_t i = 0; i < bytes; i += 64) {
        const auto* q = reinterpret_cast<const uint64_t*>(p + i);
        for (int lane = 0; lane < 8; ++lane) sum[lane] += q[lane];
    }
    return sum[0] + sum[1] + sum[2] + sum[3] + sum[4] + sum[5] + sum[6] + sum[7];
}

#if defined(__x86_64__)
__attribute__((target("avx2"))) uint64_t read_avx2(const uint8_t* p, size_t bytes) {
    __m256i a = _mm256_setzero_si256(), b = a, c = a, d = a;
    for (size_t i = 0; i < bytes; i += 128) {
        const auto* q = reinterpret_cast<const __m256i*>(p + i);
        _mm_prefetch(reinterpret_cast<const char*>(p + i + 4096), _MM_HINT_T0);
        _mm_prefetch(reinterpret_cast<const char*>(p + i + 4160), _MM_HINT_T0);
        a = _mm256_add_epi64(a, _mm256_load_si256(q));
        b = _mm256_add_epi64(b, _mm256_load_si256(q + 1));
        c = _mm256_add_epi64(c, _mm256_load_si256(q + 2));
        d = _mm256_add_epi64(d, _mm256_load_si256(q + 3));
    }
    a = _mm256_add_epi64(_mm256_add_epi64(a, b), _mm256_add_epi64(c, d));
    return uint64_t(_mm256_extract_epi64(a, 0)) + uint64_t(_mm256_extract_epi64(a, 3));
}

__attribute__((target("avx512f"))) uint64_t read_avx512(const uint8_t* p, size_t bytes) {
    __m512i a = _mm512_setzero_si512(), b = a, c = a, d = a;
    for (size_t i = 0; i < bytes; i += 256) {
        for (int line = 0; line < 256; line += 64)
            _mm_prefetch(reinterpret_cast<const char*>(p + i + 4096 + line), _MM_HINT_T0);
        a = _mm512_add_epi64(a, _mm512_load_si512(p + i));
        b = _mm512_add_epi64(b, _mm512_load_si512(p + i + 64));
        c = _mm512_add_epi64(c, _mm512_load_si512(p + i + 128));
        d = _mm512_add_epi64(d, _mm512_load_si512(p + i + 192));
    }
    uint64_t sum[8];
    _mm512_storeu_si512(sum, _mm512_add_epi64(_mm512_add_epi64(a, b), _mm512_add_epi64(c, d)));
    return sum[0] + sum[1] + sum[2] + sum[3] + sum[4] + sum[5] + sum[6] + sum[7];
}

// 16 independent chains hide the latency of the instruction; the empty asm keeps the loop from being folded.
constexpr int kChains = 16;

__attribute__((target("avx512f,avx512vnni"))) uint64_t dot_avx512(int64_t rounds) {
    __m512i acc[kChains], x = _mm512_set1_epi8(3), y = _mm512_set1_epi8(5);
#pragma GCC unroll 16
    for (int i = 0; i < kChains; ++i) acc[i] = _mm512_set1_epi32(i);
    for (int64_t r = 0; r < rounds; ++r) {
        asm volatile("" : "+v"(x), "+v"(y));
#pragma GCC unroll 16
        for (int i = 0; i < kChains; ++i) acc[i] = _mm512_dpbusd_epi32(acc[i], x, y);
    }
    __m512i sum = acc[0];
#pragma GCC unroll 16
    for (int i = 1; i < kChains; ++i) sum = _mm512_add_epi32(sum, acc[i]);
    int32_t lanes[16];
    _mm512_storeu_si512(lanes, sum);
    return uint64_t(lanes[0] + lanes[15]);
}

#if defined(LEAFAGE_AMX)
// Four accumulator tiles, two tiles of either operand: each tile instruction is 16 x 16 x 64 multiply-adds.
__attribute__((target("amx-tile,amx-int8"))) uint64_t dot_amx(int64_t rounds) {
    TileConfig config;
    for (int tile = 0; tile < 8; ++tile) config.set(tile, 16, 64);
    config.load();
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    _tile_zero(4);
    _tile_zero(5);
    _tile_zero(6);
    _tile_zero(7);
    for (int64_t r = 0; r < rounds; ++r) {
        _tile_dpbusd(0, 4, 6);
        _tile_dpbusd(1, 4, 7);
        _tile_dpbusd(2, 5, 6);
        _tile_dpbusd(3, 5, 7);
    }
    int32_t out[16 * 16];
    _tile_stored(3, out, 64);
    _tile_release();
    return uint64_t(out[0]);
}
#endif

__attribute__((target("avx2"))) uint64_t dot_avx2(int64_t rounds) {
    constexpr int chains = 8;
    __m256i acc[chains], x = _mm256_set1_epi8(3), y = _mm256_set1_epi8(5), one = _mm256_set1_epi16(1);
#pragma GCC unroll 8
    for (int i = 0; i < chains; ++i) acc[i] = _mm256_set1_epi32(i);
    for (int64_t r = 0; r < rounds; ++r) {
#pragma GCC unroll 8
        for (int i = 0; i < chains; ++i) {
            asm volatile("" : "+x"(x), "+x"(y));
            acc[i] = _mm256_add_epi32(acc[i], _mm256_madd_epi16(_mm256_maddubs_epi16(x, y), one));
        }
    }
    __m256i sum = acc[0];
#pragma GCC unroll 8
    for (int i = 1; i < chains; ++i) sum = _mm256_add_epi32(sum, acc[i]);
    return uint64_t(_mm256_extract_epi32(sum, 0) + _mm256_extract_epi32(sum, 7));
}
#elif defined(__ARM_FEATURE_DOTPROD)
uint64_t dot_neon(int64_t rounds) {
    constexpr int chains = 16;
    int32x4_t acc[chains];
    int8x16_t x = vdupq_n_s8(3), y = vdupq_n_s8(5);
#pragma GCC unroll 16
    for (int i = 0; i < chains; ++i) acc[i] = vdupq_n_s32(i);
    for (int64_t r = 0; r < rounds; ++r) {
        asm volatile("" : "+w"(x), "+w"(y));
#pragma GCC unroll 16
        for (int i = 0; i < chains; ++i) acc[i] = vdotq_s32(acc[i], x, y);
    }
    int32x4_t sum = acc[0];
#pragma GCC unroll 16
    for (int i = 1; i < chains; ++i) sum = vaddq_s32(sum, acc[i]);
    return uint64_t(vaddvq_s32(sum));
}
#endif

uint64_t dot_plain(int64_t rounds) {
    int32_t acc[64];
    int8_t x[64], y[64];
    for (int i = 0; i < 64; ++i) acc[i] = i, x[i] = int8_t(i % 7), y[i] = int8_t(i % 5);
    for (int64_t r = 0; r < rounds; ++r) {
        asm volatile("" ::: "memory");
        for (int i = 0; i < 64; ++i) acc[i] += int32_t(x[i]) * int32_t(y[i]);
    }
    int64_t sum = 0;
    for (int i = 0; i < 64; ++i) sum += acc[i];
    return uint64_t(sum);
}

void check_threads(int threads) {
    if (threads < 1 || threads > 1024) throw std::invalid_argument("threads must be 1 to 1024");
}

// Bytes per second, the best of `reads` passes over a buffer, split among the threads.
double measure_bandwidth(size_t bytes, int threads, int reads) {
    check_threads(threads);
    if (bytes < (size_t(1) << 20) || reads < 1) throw std::invalid_argument("bytes must be >= 1 MiB, reads >= 1");
    uint64_t (*read)(const uint8_t*, size_t) = read_plain;
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f"))
        read = read_avx512;
    else if (__builtin_cpu_supports("avx2"))
        read = read_avx2;
#endif
    HugeBuffer buffer(bytes);
    Team team(threads, 64);
    const size_t share = buffer.size() / size_t(threads) / 512 * 512;
    team.run([&](Worker& worker) {  // each thread touches its own part first: pages near the CPU that reads them
        std::memset(buffer.data() + share * size_t(worker.index), 1, share);
    });
    double best = 0;
    for (int i = 0; i < reads; ++i) {
        const double start = now();
        team.run([&](Worker& worker) { sink = read(buffer.data() + share * size_t(worker.index), share); });
        best = std::max(best, double(share) * threads / (now() - start));
    }
    return best;
}

// Operations per second (a multiply and an add are two) and the instruction that reached it; best of fifty bursts,
// short enough to fit between the time slices of other processes.
std::pair<double, std::string> measure_int8_peak(int threads) {
    check_threads(threads);
    uint64_t (*dot)(int64_t) = dot_plain;
    double ops = 2.0 * 64;
    std::string name = "plain";
    int64_t rounds = 20000;
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512vnni"))
        dot = dot_avx512, ops = 2.0 * 64 * kChains, name = "avx512 vpdpbusd";
    else if (__builtin_cpu_supports("avx2"))
        dot = dot_avx2, ops = 2.0 * 32 * 8, name = "avx2 vpmaddubsw";
#if defined(LEAFAGE_AMX)
    if (amx_kernels() != nullptr) dot = dot_amx, ops = 2.0 * 16 * 16 * 64 * 4, name = "amx tdpbusd";
#endif
#elif defined(__ARM_FEATURE_DOTPROD)
    dot = dot_neon, ops = 2.0 * 16 * 16, name = "neon sdot";
#endif
    Team team(threads, 64);
    double best = 0;
    for (int i = 0; i < 50; ++i) {
        const double start = now();
        team.run([&](Worker&) { sink = dot(rounds); });
        const double seconds = now() - start;
        best = std::max(best, ops * double(rounds) * threads / seconds);
        if (i == 0) rounds = std::max<int64_t>(1000, int64_t(double(rounds) * 0.002 / seconds));
    }
    return {best, name};
}

}  // namespace

void bind_floors(nb::module_& m) {
    m.def("measure_bandwidth", &measure_bandwidth, nb::arg("bytes"), nb::arg("threads"), nb::arg("reads") = 10,
          nb::call_guard<nb::gil_scoped_release>(),
          "Memory read rate in bytes/s: the best of `reads` passes over a huge-page buffer of `bytes`.");
    m.def("measure_int8_peak", &measure_int8_peak, nb::arg("threads"), nb::call_guard<nb::gil_scoped_release>(),
          "(int8 operations/s, instruction): registers only, the best of fifty bursts; a multiply-add is two.");
}

}  // namespace leafage
