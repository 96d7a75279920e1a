// Python face of packed weights, and of `linear` and `embed` on their own (tests, benchmarks).
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cstdlib>
#include <stdexcept>

#include "kernels.h"
#include "linear_amx.h"
#include "weights.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace leafage {

namespace {

using Matrix = nb::ndarray<float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using ConstMatrix = nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Ints = nb::ndarray<const int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

using Bytes = nb::ndarray<const uint8_t, nb::c_contig, nb::device::cpu>;

RawWeight raw_weight(const std::string& name, int rows, int cols, const Bytes& raw) {
    Dtype dtype = dtype_from_name(name);
    if (rows < 1 || cols < 1) throw std::invalid_argument("a weight has at least one row and one column");
    size_t expected = file_bytes(dtype, rows, cols);
    if (raw.size() != expected)
        throw std::invalid_argument("expected " + std::to_string(expected) + " bytes of " + name + " [" +
                                    std::to_string(rows) + ", " + std::to_string(cols) + "], got " +
                                    std::to_string(raw.size()));
    return {dtype, rows, cols, raw.data()};
}

PackedWeight* new_weight(const std::string& name, int rows, int cols, Bytes raw, int num_threads) {
    RawWeight weight = raw_weight(name, rows, cols, raw);
    nb::gil_scoped_release release;
    return new PackedWeight(pack({weight}, num_threads)[0]);
}

std::vector<PackedWeight> pack_weights(const std::vector<std::tuple<std::string, int, int, Bytes>>& raw,
                                       int num_threads) {
    std::vector<RawWeight> weights;
    for (const auto& [name, rows, cols, bytes] : raw) weights.push_back(raw_weight(name, rows, cols, bytes));
    nb::gil_scoped_release release;
    return pack(weights, num_threads);
}

// A team and the memory that calls share, for calling an op alone.
struct LinearRunner {
    Team team;
    std::vector<uint8_t> memory;

    explicit LinearRunner(int num_threads) : team(num_threads, worker_scratch_bytes()) {}

    uint8_t* shared(size_t bytes) {
        if (memory.size() < bytes + 64) memory.resize(bytes + 64);
        return memory.data() + (64 - reinterpret_cast<uintptr_t>(memory.data()) % 64) % 64;
    }
};

}  // namespace

void bind_weights(nb::module_& m) {
    nb::class_<PackedWeight>(m, "PackedWeight", "A weight matrix repacked for the kernels; owns its memory.")
        .def(nb::new_(&new_weight), "dtype"_a, "rows"_a, "cols"_a, "raw"_a, "num_threads"_a = 1,
             "raw: the file's bytes, row by row. Raises ValueError for an unknown dtype or a wrong size.")
        .def_prop_ro("dtype", [](const PackedWeight& w) { return std::string(w.format().name); })
        .def_ro("rows", &PackedWeight::rows)
        .def_ro("cols", &PackedWeight::cols)
        .def_prop_ro("nbytes", &PackedWeight::nbytes)
        .def("dequantize", [](const PackedWeight& w) {
            float* data = new float[size_t(w.rows) * size_t(w.cols)];
            nb::capsule owner(data, [](void* p) noexcept { delete[] static_cast<float*>(p); });
            {
                nb::gil_scoped_release release;
                for (int r = 0; r < w.rows; ++r) dequantize_row(w, r, data + size_t(r) * size_t(w.cols));
            }
            return nb::ndarray<nb::numpy, float, nb::ndim<2>>(data, {size_t(w.rows), size_t(w.cols)}, owner);
        }, "float32 [rows, cols], bit for bit what the file's blocks stand for.");

    m.def("pack_weights", &pack_weights, "raw"_a, "num_threads"_a,
          "Many PackedWeights, from (dtype, rows, cols, raw) each, by threads that share out all their panels.");

    m.def("use_amx", &use_amx, "on"_a, "Let the avx512 variant use AMX; returns whether it does. For tests.");

    nb::class_<LinearRunner>(m, "LinearRunner", "Calls linear and embed outside a program. Not thread-safe.")
        .def(nb::init<int>(), "num_threads"_a)
        .def("linear", [](LinearRunner& self, ConstMatrix x, std::vector<const PackedWeight*> weights, Matrix out,
                          std::vector<float> bias, bool accumulate, bool precise) {
            const int rows = int(x.shape(0)), k = int(x.shape(1));
            uint8_t* shared = self.shared(linear_shared_bytes(rows, k));
            LinearArgs args{x.data(), k, rows, int(weights.size()), weights.data(), out.data(), int(out.shape(1)),
                            bias.empty() ? nullptr : bias.data(), accumulate, shared, precise};
            nb::gil_scoped_release release;
            self.team.run([&](Worker& worker) { kernels().linear(args, worker); });
        }, "x"_a, "weights"_a, "out"_a, "bias"_a, "accumulate"_a, "precise"_a)
        .def("repeat", [](LinearRunner& self, ConstMatrix x, std::vector<const PackedWeight*> weights, Matrix out,
                          int times, bool precise) {
            const int rows = int(x.shape(0)), k = int(x.shape(1)), width = int(out.shape(1));
            uint8_t* shared = self.shared(linear_shared_bytes(rows, k));
            nb::gil_scoped_release release;
            self.team.run([&](Worker& worker) {
                for (int i = 0; i < times; ++i)
                    for (const PackedWeight* weight : weights) {
                        kernels().linear({x.data(), k, rows, 1, &weight, out.data(), width, nullptr, false, shared, precise},
                                         worker);
                        worker.barrier();
                    }
            });
        }, "x"_a, "weights"_a, "out"_a, "times"_a, "precise"_a, "One weight after the other, as a model does; for benchmarks.")
        .def("embed", [](LinearRunner& self, const PackedWeight* table, Ints token_ids, Matrix out, float scale) {
            EmbedArgs args{table, token_ids.data(), int(token_ids.shape(0)), out.data(), int(out.shape(1)), scale};
            nb::gil_scoped_release release;
            self.team.run([&](Worker& worker) { kernels().embed(args, worker); });
        }, "table"_a, "token_ids"_a, "out"_a, "scale"_a);
}

}  // namespace leafage
