// The sampler on NumPy arrays. Checks are in kernels/native_sampling.py.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <new>
#include <vector>

#include "program.h"
#include "sampler.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace leafage {

namespace {

template <class T, int N>
using In = nb::ndarray<const T, nb::ndim<N>, nb::c_contig, nb::device::cpu>;
template <class T, int N>
using Out = nb::ndarray<T, nb::ndim<N>, nb::c_contig, nb::device::cpu>;

// Scratch of a team. Pages that no draw touches cost nothing.
class Sampler {
  public:
    Sampler(int vocab, int num_threads) : vocab_(vocab) {
        size_t n = size_t(vocab);
        for (int i = 0; i < num_threads; ++i) {
            SampleScratch s{};
            s.exps = allocate<float>(n + 16);
            s.candidates = allocate<Candidate>(n);
            s.order = allocate<Candidate>(n);
            s.blocks = allocate<uint64_t>(n / kSampleBlock + 2);
            scratch_.push_back(s);
            saved_.emplace_back();
        }
    }

    void run(const Out<float, 2>& logits, const In<double, 2>& params, const In<int32_t, 2>& limits,
             const In<int32_t, 1>& seen_offsets, const In<int32_t, 1>& seen_ids, const In<int32_t, 1>& seen_counts,
             const In<int32_t, 1>& bias_offsets, const In<int32_t, 1>& bias_ids, const In<float, 1>& bias_values,
             const In<int32_t, 1>& draw_offsets, const In<uint64_t, 1>& seeds, const In<int64_t, 1>& positions,
             const In<int32_t, 1>& targets, const Out<int32_t, 1>& tokens, const Out<double, 1>& logprobs,
             const Out<int32_t, 1>& ranks, const Out<int32_t, 2>& top_ids, const Out<double, 2>& top_logprobs,
             const Out<uint8_t, 1>& usable, Program* program) {
        SampleArgs a{logits.data(), int(logits.shape(0)), vocab_, params.data(), limits.data(), seen_offsets.data(),
                     seen_ids.data(), seen_counts.data(), bias_offsets.data(), bias_ids.data(), bias_values.data(),
                     draw_offsets.data(), seeds.data(), positions.data(), targets.data(), tokens.data(),
                     logprobs.data(), ranks.data(), int(top_ids.shape(1)), top_ids.data(), top_logprobs.data(),
                     usable.data(), scratch_.data()};
        size_t edits = 0;
        for (int r = 0; r < a.rows; ++r)
            edits = std::max(edits, size_t(a.seen_offsets[r + 1] - a.seen_offsets[r] + a.bias_offsets[r + 1] -
                                           a.bias_offsets[r]));
        for (size_t i = 0; i < scratch_.size(); ++i) {
            if (saved_[i].size() < edits) saved_[i].resize(edits);
            scratch_[i].saved = saved_[i].data();
        }
        const Kernels& table = kernels();
        nb::gil_scoped_release release;
        if (program != nullptr) {
            program->team().run([&](Worker& worker) { table.sample(a, worker); });
        } else {
            if (!team_) team_ = std::make_unique<Team>(int(scratch_.size()), 64);
            team_->run([&](Worker& worker) { table.sample(a, worker); });
        }
    }

    int num_threads() const { return int(scratch_.size()); }
    const int vocab_;

  private:
    template <class T>
    T* allocate(size_t n) {
        void* p = std::malloc(n * sizeof(T));
        if (p == nullptr) throw std::bad_alloc();
        memory_.emplace_back(p, &std::free);
        return static_cast<T*>(p);
    }

    std::vector<std::unique_ptr<void, void (*)(void*)>> memory_;
    std::vector<SampleScratch> scratch_;
    std::vector<std::vector<float>> saved_;
    std::unique_ptr<Team> team_;  // only without a program
};

}  // namespace

void bind_sampler(nb::module_& m) {
    nb::class_<Sampler>(m, "Sampler")
        .def(nb::init<int, int>(), "vocab_size"_a, "num_threads"_a)
        .def_ro("vocab_size", &Sampler::vocab_)
        .def_prop_ro("num_threads", &Sampler::num_threads)
        .def("run", &Sampler::run, "logits"_a, "params"_a, "limits"_a, "seen_offsets"_a, "seen_ids"_a,
             "seen_counts"_a, "bias_offsets"_a, "bias_ids"_a, "bias_values"_a, "draw_offsets"_a, "seeds"_a,
             "positions"_a, "targets"_a, "tokens"_a, "logprobs"_a, "ranks"_a, "top_ids"_a, "top_logprobs"_a,
             "usable"_a, "program"_a.none(),
             "Sample all rows on the threads of `program` (as many as the sampler was made for), or on its own.");
}

}  // namespace leafage
