// The sampler of Python; kernels/native_sampling.py is what others call.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "program.h"
#include "sampler_plan.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace leafage {

namespace {

using Logits = nb::ndarray<float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

using Top = std::vector<std::pair<int32_t, double>>;

std::vector<Top> tops(const SamplingPlan& plan) {
    std::vector<Top> all(plan.rows.size());
    for (size_t r = 0; r < plan.rows.size(); ++r) {
        if (plan.rows[r].num_top <= 0 || plan.rows[r].first_draw == plan.rows[r].end_draw) continue;
        for (size_t i = r * size_t(plan.max_top); all[r].size() < size_t(plan.rows[r].num_top); ++i)
            all[r].emplace_back(plan.top_ids[i], plan.top_logprobs[i]);
    }
    return all;
}

}  // namespace

void bind_sampler(nb::module_& m) {
    nb::class_<SamplingState>(m, "SamplingState")
        .def("__init__", [](SamplingState* self, int vocab_size, double temperature, double top_p, double min_p,
                            int64_t top_k, double repetition, double presence, double frequency, int num_top) {
            SampleRow row;
            row.temperature = temperature;
            row.top_p = top_p;
            row.min_p = min_p;
            row.top_k = int32_t(std::min<int64_t>(top_k, vocab_size));
            row.repetition = float(repetition);
            row.presence = float(presence);
            row.frequency = float(frequency);
            row.num_top = std::min(num_top, vocab_size);
            new (self) SamplingState(vocab_size, row);
        }, "vocab_size"_a, "temperature"_a = 0.0, "top_p"_a = 1.0, "min_p"_a = 0.0, "top_k"_a = 0,
             "repetition_penalty"_a = 1.0, "presence_penalty"_a = 0.0, "frequency_penalty"_a = 0.0, "num_top"_a = -1)
        .def("see", &SamplingState::see, "token_ids"_a, "output"_a,
             "Append tokens that the penalties count, of the prompt or of the output.");

    nb::class_<SamplingPlan>(m, "SamplingPlan")
        .def(nb::init<int, const std::vector<const SamplingState*>&, const std::vector<int32_t>&,
                      std::vector<uint64_t>, std::vector<int64_t>, std::vector<int32_t>,
                      const std::vector<std::tuple<int32_t, int32_t, float>>&>(),
             "vocab_size"_a, "states"_a, "num_draws"_a, "seeds"_a, "positions"_a, "targets"_a, "bias"_a,
             nb::keep_alive<1, 3>(), "Draws of each row of logits, in order. The list of states is the plan's.")
        .def_prop_ro("num_rows", [](const SamplingPlan& p) { return p.rows.size(); })
        .def_ro("tokens", &SamplingPlan::tokens)
        .def_ro("logprobs", &SamplingPlan::logprobs)
        .def_ro("ranks", &SamplingPlan::ranks)
        .def_prop_ro("usable",
                     [](const SamplingPlan& p) { return std::vector<bool>(p.usable.begin(), p.usable.end()); })
        .def_prop_ro("tops", &tops);

    nb::class_<Sampler>(m, "Sampler")
        .def(nb::init<int, int>(), "vocab_size"_a, "num_threads"_a)
        .def_prop_ro("vocab_size", &Sampler::vocab)
        .def_prop_ro("num_threads", &Sampler::num_threads)
        .def("run", [](Sampler& self, SamplingPlan& plan, Logits logits, int first) {
            int rows = int(logits.shape(0)), vocab = int(logits.shape(1));
            if (first < 0 || first + rows > int(plan.rows.size()))
                throw std::invalid_argument("expected logits of some of the plan's " + std::to_string(plan.rows.size()) +
                                            " rows, got rows " + std::to_string(first) + " to " +
                                            std::to_string(first + rows));
            self.check(plan, vocab, int(plan.rows.size()), self.num_threads());
            nb::gil_scoped_release release;
            SampleArgs args = self.args(plan, logits.data(), first, rows);
            Team team(self.num_threads(), 64);
            team.run([&](Worker& worker) { kernels().sample(args, worker); });
        }, "plan"_a, "logits"_a.noconvert(), "first"_a,
             "Sample the plan's rows from `first` on, on threads of its own; a program does so inside its step.");
}

}  // namespace leafage
