#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <stdexcept>
#include <string>

#include "attention.h"
#include "program.h"
#include "weights.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace leafage {

namespace {

// The arrays of a step; kernels/step_inputs.py has their order.
StepView view(const nb::bytes& data, int rows, int items, int logit_rows) {
    const int64_t ints = int64_t(data.size() / sizeof(int32_t)), fixed = 3 * int64_t(rows) + 4 * int64_t(items) + logit_rows;
    if (rows < 0 || items < 0 || logit_rows < 0 || ints < fixed || ints - fixed > INT32_MAX)
        throw std::invalid_argument("expected at least " + std::to_string(fixed) + " numbers for " +
                                    std::to_string(rows) + " rows and " + std::to_string(items) + " items, got " +
                                    std::to_string(ints));
    StepView step{};
    step.num_rows = rows, step.num_items = items, step.num_logit_rows = logit_rows;
    step.num_table_entries = int(ints - fixed);
    const int32_t* next = reinterpret_cast<const int32_t*>(data.c_str());
    auto take = [&](const int32_t*& array, int count) { array = next, next += count; };
    for (const int32_t** array : {&step.token_ids, &step.positions, &step.slots}) take(*array, rows);
    for (const int32_t** array : {&step.item_rows, &step.item_num_rows, &step.item_starts, &step.table_offsets})
        take(*array, items);
    take(step.logit_rows, logit_rows);
    take(step.tables, step.num_table_entries);
    return step;
}

using Pairs = nb::ndarray<const int32_t, nb::shape<-1, 2>, nb::c_contig, nb::device::cpu>;
using Floats = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

std::vector<float> copy_of(const Floats& array) { return {array.data(), array.data() + array.shape(0)}; }

Sampling checked(const Program& p, const StepView& step, Sampler* sampler, SamplingPlan* plan) {
    if (sampler == nullptr || plan == nullptr) return {};
    sampler->check(*plan, p.logits_width(), step.num_logit_rows, p.num_threads());
    return {sampler, plan};
}

Op unary(OpKind kind, int in, int out) {
    Op op;
    op.kind = kind;
    op.in = in;
    op.out = out;
    return op;
}

}  // namespace

void bind_program(nb::module_& m) {
    nb::class_<KVCache>(m, "KVCache")
        .def("__init__", [](KVCache* self, const std::string& dtype, int num_layers, int num_blocks, int block_size,
                            int num_kv_heads, int head_dim) {
            new (self) KVCache(kv_dtype(dtype), num_layers, num_blocks, block_size, num_kv_heads, head_dim);
        }, "dtype"_a, "num_layers"_a, "num_blocks"_a, "block_size"_a, "num_kv_heads"_a, "head_dim"_a)
        .def_prop_ro("num_bytes", &KVCache::num_bytes)
        .def_ro("num_layers", &KVCache::num_layers_)
        .def_ro("num_blocks", &KVCache::num_blocks_)
        .def_ro("block_size", &KVCache::block_size_)
        .def_ro("block_bytes", &KVCache::block_bytes_)
        .def("array", [](KVCache& self) {
            return nb::ndarray<nb::numpy, uint8_t, nb::ndim<3>>(
                self.base(), {size_t(self.num_blocks_), size_t(self.num_layers_), self.layer_bytes_}, nb::find(self));
        }, "The pool as uint8 [num_blocks, num_layers, bytes], for tests and transfers.");

    nb::class_<Program>(m, "Program")
        .def(nb::init<int, int, int, std::vector<std::pair<int, int>>, std::vector<int>, int, KVCache*>(),
             "num_threads"_a, "max_rows"_a, "max_logit_rows"_a, "buffers"_a, "slot_widths"_a, "head_start"_a, "kv"_a,
             nb::keep_alive<1, 8>())
        .def("embed", [](Program& p, int out, const PackedWeight* table, float scale) {
            Op op = unary(OpKind::kEmbed, -1, out);
            op.weights = {table};
            op.f0 = scale;
            p.add(std::move(op));
        }, nb::keep_alive<1, 3>())
        .def("rms_norm", [](Program& p, int in, int out, Floats weight, float eps, int column, int num_heads) {
            Op op = unary(OpKind::kRmsNorm, in, out);
            op.vec = copy_of(weight);
            op.head_dim = int(op.vec.size());
            op.f0 = eps;
            op.column = column;
            op.num_heads = num_heads;
            p.add(std::move(op));
        })
        .def("linear", [](Program& p, int in, int out, std::vector<const PackedWeight*> weights,
                          Floats bias, bool accumulate, bool precise) {
            Op op = unary(OpKind::kLinear, in, out);
            op.weights = std::move(weights);
            op.vec = copy_of(bias);
            op.flag = accumulate;
            op.precise = precise;
            p.add(std::move(op));
        }, "The caller keeps the weights alive as long as the program.")
        .def("add", [](Program& p, int x, int y) {
            Op op = unary(OpKind::kAdd, x, x);
            op.in2 = y;
            p.add(std::move(op));
        })
        .def("add_rope", [](Program& p, Floats inv_freq, double scale, int max_position, bool interleaved) {
            p.add_rope(copy_of(inv_freq), scale, max_position, interleaved);
        })
        .def("rope", [](Program& p, int x, int rope, int column, int num_heads, int head_dim) {
            Op op = unary(OpKind::kRope, x, x);
            op.rope = rope;
            op.column = column;
            op.num_heads = num_heads;
            op.head_dim = head_dim;
            p.add(std::move(op));
        })
        .def("kv_write", [](Program& p, int in, int layer, int k_column, int v_column) {
            Op op = unary(OpKind::kKVWrite, in, -1);
            op.layer = layer;
            op.column = k_column;
            op.column2 = v_column;
            p.add(std::move(op));
        })
        .def("attention", [](Program& p, int in, int out, int layer, int num_heads, float scale, int q_column,
                             int window, float softcap) {
            Op op = unary(OpKind::kAttention, in, out);
            op.layer = layer;
            op.num_heads = num_heads;
            op.f0 = scale;
            op.f1 = softcap;
            op.column = q_column;
            op.window = window;
            p.add(std::move(op));
        })
        .def("act_mul", [](Program& p, int in, int out, const std::string& activation) {
            Op op = unary(OpKind::kActMul, in, out);
            op.activation = activation == "silu" ? Activation::kSilu : Activation::kGeluTanh;
            p.add(std::move(op));
        })
        .def("select_logit_rows", [](Program& p, int in, int out) { p.add(unary(OpKind::kSelectLogitRows, in, out)); })
        .def("softcap", [](Program& p, int x, float cap) {
            Op op = unary(OpKind::kSoftcap, x, x);
            op.f0 = cap;
            p.add(std::move(op));
        })
        .def("finish", &Program::finish, "max_k"_a, "max_heads"_a, "head_dim"_a)
        .def("run", [](Program& p, nb::bytes data, int rows, int items, int logit_rows, int vocab_size,
                       int max_position, Sampler* sampler, SamplingPlan* plan) {
            StepView step = view(data, rows, items, logit_rows);
            p.check(step, vocab_size, max_position);
            Sampling sampling = checked(p, step, sampler, plan);
            nb::gil_scoped_release release;
            p.run(step, sampling);
        }, "data"_a, "num_rows"_a, "num_items"_a, "num_logit_rows"_a, "vocab_size"_a, "max_position"_a,
           "sampler"_a.none(), "plan"_a.none())
        .def("run_head", [](Program& p, nb::bytes data, int rows, int items, int logit_rows, int first,
                            Sampler* sampler, SamplingPlan* plan) {
            StepView step = view(data, rows, items, logit_rows);
            if (first < 0 || first >= logit_rows)
                throw std::invalid_argument("expected the first logit row in [0, " + std::to_string(logit_rows) +
                                            "), got " + std::to_string(first));
            Sampling sampling = checked(p, step, sampler, plan);
            nb::gil_scoped_release release;
            p.run_head(step, first, sampling);
        }, "data"_a, "num_rows"_a, "num_items"_a, "num_logit_rows"_a, "first"_a, "sampler"_a.none(), "plan"_a.none())
        .def("copy_blocks", [](Program& p, Pairs pairs) {
            std::vector<int32_t> src, dst;
            for (size_t i = 0; i < pairs.shape(0); ++i) {
                src.push_back(pairs.data()[2 * i]);
                dst.push_back(pairs.data()[2 * i + 1]);
            }
            nb::gil_scoped_release release;
            p.copy_blocks(src, dst);
        }, "pairs"_a.noconvert())
        .def("logits", [](Program& p) {
            return nb::ndarray<nb::numpy, float, nb::ndim<2>>(
                p.logits(), {size_t(p.max_logit_rows()), size_t(p.logits_width())}, nb::find(p));
        }, "float32 [max_logit_rows, vocab]; overwritten by the next run.")
        .def_prop_ro("num_bytes", &Program::num_bytes)
        .def_prop_ro("num_threads", &Program::num_threads)
        .def_prop_ro("seconds", [](Program& p) { return p.team().seconds(); })
        .def_rw("profile", &Program::profile)
        .def_ro("op_seconds", &Program::op_seconds);
}

}  // namespace leafage
