// The attention ops on NumPy arrays, for tests and benchmarks, and the copy of blocks. Checks are in
// kernels/native_attention.py.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <ctime>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <stdexcept>
#include <vector>

#include "attention.h"
#include "attention_bf16.h"
#include "cpu.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace leafage {

#if defined(__x86_64__)
namespace isa_avx512 {
void attention_fma(const AttentionArgs& a, Worker& worker);
}
#endif

namespace {

template <class T, int N>
using In = nb::ndarray<const T, nb::ndim<N>, nb::c_contig, nb::device::cpu>;
template <class T, int N>
using Out = nb::ndarray<T, nb::ndim<N>, nb::c_contig, nb::device::cpu>;
// One layer's blocks as bytes: rows are contiguous, any distance apart.
using Pool = nb::ndarray<uint8_t, nb::ndim<2>, nb::device::cpu>;

// Teams of these bindings, kept: starting threads costs more than the work. One call at a time.
std::mutex g_mutex;
Team& team(int num_threads) {
    static std::map<int, std::unique_ptr<Team>> teams;
    auto& found = teams[num_threads];
    if (!found) found = std::make_unique<Team>(num_threads, attention_scratch_bytes());
    return *found;
}

// Ways of computing attention that run here, as tables. Tests reach all of the AVX-512 variant, whichever this CPU
// prefers.
const std::map<std::string, Kernels>& ways() {
    static const std::map<std::string, Kernels> found = [] {
        std::map<std::string, Kernels> ways;
        auto add = [&](const std::string& name, const Kernels& table, AttentionWay way) {
            ways[name] = table;
            if (way != nullptr) ways[name].attention = way;
        };
        for (const auto& name : variants()) {
            const Kernels& table = *find_variant(name);
            if (name != "avx512") {
                add(name, table, nullptr);
                continue;
            }
#if defined(__x86_64__)
            add("avx512-fma", table, &isa_avx512::attention_fma);
#endif
            if (attention_dot() != nullptr) add("avx512-dot", table, attention_dot());
            if (attention_tiles() != nullptr) add("avx512-amx", table, attention_tiles());
        }
        return ways;
    }();
    return found;
}

const Kernels& variant(const std::string& name) {
    if (name.empty()) return kernels();
    auto way = ways().find(name);
    return way == ways().end() ? named_variant("the variant", name) : way->second;
}

KVLayer layer(const Pool& pool, const std::string& dtype, int block_size, int num_kv_heads, int head_dim) {
    return {pool.data(), size_t(pool.stride(0)), block_size, num_kv_heads, head_dim, kv_dtype(dtype)};
}

void py_kv_write(const Pool& pool, const std::string& dtype, int block_size, int num_kv_heads, int head_dim, const In<float, 2>& x,
                 int k_column, int v_column, const In<int32_t, 1>& slots, int num_threads, const std::string& name) {
    KVWriteArgs args{layer(pool, dtype, block_size, num_kv_heads, head_dim), x.data(), int(x.shape(1)), int(x.shape(0)),
                     k_column, v_column, slots.data()};
    const Kernels& table = variant(name);
    nb::gil_scoped_release release;
    std::lock_guard<std::mutex> lock(g_mutex);
    team(num_threads).run([&](Worker& worker) { table.kv_write(args, worker); });
}

// Wall time; CPU time of one thread, which other processes disturb less.
double seconds_of(int num_threads) {
#if defined(CLOCK_THREAD_CPUTIME_ID)
    if (num_threads == 1) {
        timespec t;
        clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
        return double(t.tv_sec) + 1e-9 * double(t.tv_nsec);
    }
#endif
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Returns the seconds of the fastest of `repeat` runs.
double py_attention(const Pool& pool, const std::string& dtype, int block_size, int num_kv_heads, int head_dim,
                    const In<float, 2>& q, const Out<float, 2>& out, float scale, float softcap, int window,
                    const In<int32_t, 1>& item_rows, const In<int32_t, 1>& item_num_rows,
                    const In<int32_t, 1>& item_starts, const In<int32_t, 1>& table_offsets,
                    const In<int32_t, 1>& tables, int num_threads, const std::string& name, size_t shared_bytes,
                    int repeat) {
    std::vector<AttentionItem> items;
    for (size_t i = 0; i < item_rows.shape(0); ++i)
        items.push_back({item_rows.data()[i], item_num_rows.data()[i], item_starts.data()[i],
                         tables.data() + table_offsets.data()[i]});
    int num_heads = int(q.shape(1)) / head_dim;
    if (shared_bytes == 0) shared_bytes = attention_shared_bytes(int(q.shape(0)), num_heads, head_dim);
    std::unique_ptr<void, decltype(&std::free)> shared(std::aligned_alloc(64, size_t(round_up(int64_t(shared_bytes), 64))),
                                                       &std::free);
    if (!shared) throw std::bad_alloc();
    AttentionArgs args{layer(pool, dtype, block_size, num_kv_heads, head_dim), q.data(), int(q.shape(1)), out.data(),
                       int(out.shape(1)), num_heads, scale, softcap, window, int(items.size()), items.data(),
                       static_cast<uint8_t*>(shared.get()), shared_bytes};
    const Kernels& table = variant(name);
    nb::gil_scoped_release release;
    std::lock_guard<std::mutex> lock(g_mutex);
    double best = 1e30;
    for (int i = 0; i < repeat; ++i) {
        double start = seconds_of(num_threads);
        team(num_threads).run([&](Worker& worker) { table.attention(args, worker); });
        best = std::min(best, seconds_of(num_threads) - start);
    }
    return best;
}

}  // namespace

void bind_attention(nb::module_& m) {
    m.def("kv_write", &py_kv_write, "pool"_a, "dtype"_a, "block_size"_a, "num_kv_heads"_a, "head_dim"_a, "x"_a, "k_column"_a,
          "v_column"_a, "slots"_a, "num_threads"_a, "variant"_a);
    m.def("attention", &py_attention, "pool"_a, "dtype"_a, "block_size"_a, "num_kv_heads"_a, "head_dim"_a, "q"_a, "out"_a,
          "scale"_a, "softcap"_a, "window"_a, "item_rows"_a, "item_num_rows"_a, "item_starts"_a, "table_offsets"_a,
          "tables"_a, "num_threads"_a, "variant"_a, "shared_bytes"_a, "repeat"_a);
    m.def("attention_variants", [] {
        std::vector<std::string> names;
        for (const auto& way : ways()) names.push_back(way.first);
        return names;
    }, "Ways of computing attention that run on this CPU; 'avx512' is one of those that begin so, by CPU.");
    m.attr("MAX_HEAD_DIM") = kMaxHeadDim;
}

}  // namespace leafage
