// Sampling for one instruction set; contract: sampler.h.
//
// The exponential never decreases (checked for every float up to 0), so a token's weight never decreases with its
// logit, and whatever min_p, top_k and top_p keep is all that is not worse than one (logit, id): a Cut.
#include <algorithm>
#include <cmath>
#include <limits>

#include "sampler.h"

#if defined(LEAFAGE_AVX512) || defined(LEAFAGE_AVX2)
#include <immintrin.h>
#endif

namespace leafage {
namespace LEAFAGE_ISA_NAMESPACE {
namespace sampling {

#include "sampler_scan_impl.h"

// Philox4x32-10 (Salmon et al., SC 2011): 64 bits by key and counter.
static uint64_t random_bits(uint64_t key, uint64_t counter) {
    uint32_t k0 = uint32_t(key), k1 = uint32_t(key >> 32);
    uint32_t c0 = uint32_t(counter), c1 = uint32_t(counter >> 32), c2 = 0, c3 = 0;
    for (int round = 0; round < 10; ++round) {
        uint64_t p0 = uint64_t(0xD2511F53u) * c0, p1 = uint64_t(0xCD9E8D57u) * c2;
        c0 = uint32_t(p1 >> 32) ^ c1 ^ k0;
        c1 = uint32_t(p1);
        c2 = uint32_t(p0 >> 32) ^ c3 ^ k1;
        c3 = uint32_t(p0);
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    return uint64_t(c0) << 32 | c1;
}

// A number in [0, total).
static inline uint64_t draw_below(uint64_t total, uint64_t seed, int64_t position) {
    return uint64_t((unsigned __int128)(random_bits(seed, uint64_t(position))) * total >> 64);
}

struct Better {
    bool operator()(const Candidate& a, const Candidate& b) const {
        return a.logit != b.logit ? a.logit > b.logit : a.id < b.id;
    }
};

// 2^40 * e^((x - max) / temperature) of logits.
struct Exponential {
    float max, scale;
    Vec operator()(Vec x) const { return scaled_exp((x - vset(max)) * vset(scale)); }
    float of(float x) const { return (*this)(vset(x))[0]; }
    // Logits below this have no weight.
    float weightless() const { return max - kWeightless / scale; }
};

// The last (logit, id) that is kept, in the order of Better.
struct Cut {
    float logit = -kInfinity;
    int32_t id = std::numeric_limits<int32_t>::max();
    bool all() const { return logit == -kInfinity; }
    IVec keeps(Vec x, IVec ids) const {
        return (x > vset(logit)) | ((x == vset(logit)) & (ids <= id));
    }
};

// Logits in order of id: a row (no ids) or a part of one, padded with -inf to a multiple of 16.
struct Values {
    const float* logits;
    const int32_t* ids;
    int count;
    const float* maxima;  // of its blocks, or null
};

// Sums of weights by block; returns the sum of all.
template <bool kAll>
static uint64_t sum_weights(const Values& v, const Exponential& exponential, const Cut& cut, uint64_t* sums) {
    uint64_t total = 0;
    float floor = exponential.weightless();
    if (cut.logit > floor) floor = cut.logit;
    for (int begin = 0, b = 0; begin < v.count; begin += kSampleBlock, ++b) {
        sums[b] = 0;
        if (v.maxima != nullptr && v.maxima[b] < floor) continue;
        WeightSum sum;
        for_runs(v.count - begin < kSampleBlock ? v.count - begin : kSampleBlock, [&](int i, int n) {
            Vec x = load_run(v.logits + begin + i, n), e = exponential(x);
            if (!kAll) e = choose(cut.keeps(x, load_ids(v.ids, begin + i)), e, Vec{});
            sum.add(e);
        });
        sums[b] = sum.total();
        total += sums[b];
    }
    return total;
}

// Appends the logits >= least and their ids to `values` and `ids`.
static int collect(const Values& v, float least, float* values, int32_t* ids) {
    int count = 0;
    for (int begin = 0; begin < v.count; begin += kSampleBlock) {
        if (v.maxima[begin / kSampleBlock] < least) continue;
        for_runs(v.count - begin < kSampleBlock ? v.count - begin : kSampleBlock, [&](int i, int n) {
            Vec x = load_run(v.logits + begin + i, n);
            uint32_t bits = lane_bits(x >= vset(least));
            if (bits != 0) count = append_lanes(bits, x, load_ids(nullptr, begin + i), values, ids, count);
        });
    }
    vstore(values + count, vset(-kInfinity));
    return count;
}

constexpr int kBuckets = 256;

// Where the best ones reach `mass`: the last of them such that the mass before it is below `mass`. The mass of a
// token is its weight, or 1. Nothing below `least` counts. The cut is `otherwise` when all together are too few.
// Histograms over the range of the logits narrow it down to the few around the cut.
template <bool kCount>
static Cut find_cut(Values v, const Exponential& exponential, float least, double mass, Cut otherwise,
                    SampleScratch& s) {
    if (!kCount && exponential.weightless() > least) least = exponential.weightless();
    if (least == -kInfinity) least = -std::numeric_limits<float>::max();
    uint64_t before = 0;
    float low, high;
    auto measure = [&] {
        Vec lows = vset(kInfinity), highs = vset(-kInfinity);
        for_runs(v.count, [&](int i, int n) {
            Vec x = load_run(v.logits + i, n);
            highs = larger(x, highs);
            lows = smaller(lows, choose(x >= vset(least), x, vset(kInfinity)));
        });
        high = largest_lane(highs);
        low = -largest_lane(-lows);
    };
    measure();
    while (v.count > 32 && high > low) {
        float inverse = float(kBuckets) / (high - low);
        if (!std::isfinite(inverse)) break;
        auto bucket_of = [&](Vec x) {
            Vec distance = (vset(high) - x) * vset(inverse);
            return __builtin_convertvector(smaller(distance, vset(float(kBuckets - 1))), IVec);
        };
        uint64_t sums[4][kBuckets + 1] = {};  // four, so that neighbours do not wait for each other; the last: too low
        for_runs(v.count, [&](int i, int n) {
            Vec x = load_run(v.logits + i, n);
            IVec fits = x >= vset(least), bucket = (bucket_of(x) & fits) | (~fits & kBuckets);
            float weights[kWidth];
            int32_t buckets[kWidth];
            std::memcpy(buckets, &bucket, sizeof buckets);
            if (!kCount) vstore(weights, exponential(x));
            for (int lane = 0; lane < kWidth; ++lane)
                sums[lane % 4][buckets[lane]] += kCount ? 1 : weight_of(weights[lane]);
        });
        int bucket = 0;
        for (;; ++bucket) {
            if (bucket == kBuckets) return otherwise;
            uint64_t sum = sums[0][bucket] + sums[1][bucket] + sums[2][bucket] + sums[3][bucket];
            if (!(double(before + sum) < mass)) break;
            before += sum;
        }
        int count = 0;
        for_runs(v.count, [&](int i, int n) {
            Vec x = load_run(v.logits + i, n);
            uint32_t bits = lane_bits((x >= vset(least)) & (bucket_of(x) == bucket));
            if (bits != 0) count = append_lanes(bits, x, load_ids(v.ids, i), s.close_logits, s.close_ids, count);
        });
        bool narrower = count < v.count;
        v = {s.close_logits, s.close_ids, count, nullptr};
        vstore(s.close_logits + count, vset(-kInfinity));
        measure();
        if (!narrower) break;
    }
    int count = 0;
    for (int i = 0; i < v.count; ++i)
        if (v.logits[i] >= least) s.order[count++] = {v.logits[i], v.ids != nullptr ? v.ids[i] : i};
    if (high > low) std::sort(s.order, s.order + count, Better());
    Candidate last = s.order[0];
    for (int i = 0; i < count; ++i) {
        if (i > 0 && !(double(before) < mass)) return {last.logit, last.id};
        last = s.order[i];
        before += kCount ? 1 : weight_of(exponential.of(last.logit));
    }
    return double(before) < mass ? otherwise : Cut{last.logit, last.id};
}

// The tokens that may be drawn: what `cut_` keeps of `values_`, with the sums of their weights by block.
class Distribution {
  public:
    Distribution(const Values& values, float max, const SampleRow& row, SampleScratch& scratch)
        : values_(values), s_(scratch) {
        double inverse = 1.0 / row.temperature;
        exponential_ = {max, inverse < 1e30 ? float(inverse) : 1e30f};
        if (float min_p = float(row.min_p) * kWeightScale; min_p > 0) {
            cut_.logit = lowest(max, [&](float x) { return exponential_.of(x) >= min_p; });
            narrow(cut_.logit);
        }
        if (row.top_k > 0 && row.top_k < values.count) {
            narrow(best_block(row.top_k));
            cut_.logit = find_cut<true>(values_, exponential_, cut_.logit, row.top_k, cut_, s_).logit;
        }
        if (row.top_p < 1.0) {
            double mass = row.top_p * double(sum());
            if (values_.ids == nullptr) {  // mostly a few near the maximum are enough
                Values all = values_;
                narrow(best_block(64));
                if (values_.ids != nullptr && double(sum()) < mass) values_ = all;
            }
            cut_ = find_cut<false>(values_, exponential_, cut_.logit, mass, cut_, s_);
        }
        total_ = sum();
    }

    int draw(uint64_t seed, int64_t position) const {
        uint64_t target = draw_below(total_, seed, position);
        int block = 0;
        while (target >= s_.sums[block]) target -= s_.sums[block++];
        for (int i = block * kSampleBlock;; i += kWidth) {
            Vec x = load_run(values_.logits + i, values_.count - i < kWidth ? values_.count - i : kWidth);
            IVec ids = load_ids(values_.ids, i);
            float weights[kWidth];
            vstore(weights, choose(cut_.keeps(x, ids), exponential_(x), Vec{}));
            for (int lane = 0; lane < kWidth; ++lane) {
                uint64_t weight = weight_of(weights[lane]);
                if (target < weight) return ids[lane];
                target -= weight;
            }
        }
    }

  private:
    uint64_t sum() const {
        return cut_.all() ? sum_weights<true>(values_, exponential_, cut_, s_.sums)
                          : sum_weights<false>(values_, exponential_, cut_, s_.sums);
    }

    // A logit that at least k tokens reach: the k-th largest maximum of a block; -inf when there are fewer blocks.
    float best_block(int k) const {
        int blocks = int(ceil_div(values_.count, kSampleBlock));
        if (values_.maxima == nullptr || k > blocks) return -kInfinity;
        Values maxima{values_.maxima, nullptr, blocks, nullptr};
        return find_cut<true>(maxima, exponential_, -kInfinity, k, Cut{}, s_).logit;
    }

    // Go on with the logits >= least alone, when few blocks of the row have any.
    void narrow(float least) {
        if (values_.maxima == nullptr || least == -kInfinity) return;
        int blocks = int(ceil_div(values_.count, kSampleBlock)), some = 0;
        for (int b = 0; b < blocks; ++b) some += values_.maxima[b] >= least;
        if (some > 64 && some > blocks / 4) return;
        int count = collect(values_, least > cut_.logit ? least : cut_.logit, s_.logits, s_.ids);
        values_ = {s_.logits, s_.ids, count, nullptr};
    }

    Values values_;
    SampleScratch& s_;
    Exponential exponential_;
    Cut cut_;
    uint64_t total_ = 0;
};

// Applies a row's penalties, bias and bans; restores the logits at the end.
class Edits {
  public:
    Edits(const SampleRow& row, float* logits, float* saved) : row_(row), logits_(logits), saved_(saved) {
        for (int i = 0; i < row.num_seen; ++i) {
            float& x = logits_[row.seen_ids[i]];
            *saved_++ = x;
            if (row.repetition != 1.0f) x = x > 0 ? x / row.repetition : x * row.repetition;
            if (row.seen_counts[i] > 0) {
                x -= row.frequency * float(row.seen_counts[i]);
                x -= row.presence;
            }
        }
        for (int i = 0; i < row.num_bias; ++i) {
            float& x = logits_[row.bias_ids[i]];
            *saved_++ = x;
            x = row.bias_values[i] == -kInfinity ? -kInfinity : x + row.bias_values[i];
        }
    }
    ~Edits() {
        for (int i = row_.num_bias; i-- > 0;) logits_[row_.bias_ids[i]] = *--saved_;
        for (int i = row_.num_seen; i-- > 0;) logits_[row_.seen_ids[i]] = *--saved_;
    }

  private:
    const SampleRow& row_;
    float* logits_;
    float* saved_;
};

static void sample_row(const SampleArgs& a, int index, SampleScratch& scratch) {
    const SampleRow& row = a.row[index];
    a.usable[index] = 1;
    if (row.first_draw == row.end_draw) return;
    float* logits = a.logits + int64_t(index) * a.vocab;
    Edits edits(row, logits, scratch.saved);
    float max;
    int best;
    if (!find_maxima(logits, a.vocab, scratch.maxima, &max, &best)) {
        a.usable[index] = 0;
        return;
    }
    const Values values{logits, nullptr, a.vocab, scratch.maxima};
    bool draws = false;
    for (int d = row.first_draw; d < row.end_draw; ++d) {
        if (a.targets[d] >= 0)
            a.tokens[d] = a.targets[d];
        else if (row.temperature > 0)
            draws = true;
        else
            a.tokens[d] = best;
    }
    if (draws) {
        Distribution distribution(values, max, row, scratch);
        for (int d = row.first_draw; d < row.end_draw; ++d)
            if (a.targets[d] < 0) a.tokens[d] = distribution.draw(a.seeds[d], a.positions[d]);
    }
    if (row.num_top < 0) return;
    uint64_t total = sum_weights<true>(values, {max, 1.0f}, Cut{}, scratch.sums);
    double log_sum = std::log(double(total) / double(kWeightScale));
    auto logprob = [&](int id) { return double(logits[id]) - double(max) - log_sum; };
    for (int d = row.first_draw; d < row.end_draw; ++d) {
        a.logprobs[d] = logprob(a.tokens[d]);
        a.ranks[d] = 1 + count_above(logits, a.vocab, scratch.maxima, logits[a.tokens[d]]);
    }
    int32_t* ids = a.top_ids + int64_t(index) * a.max_top;
    find_top(logits, a.vocab, scratch.maxima, row.num_top, ids);
    for (int i = 0; i < row.num_top; ++i) a.top_logprobs[int64_t(index) * a.max_top + i] = logprob(ids[i]);
}

}  // namespace sampling

static void sample(const SampleArgs& a, Worker& worker) {
    for (int64_t row = worker.take(); row < a.rows; row = worker.take())
        sampling::sample_row(a, int(row), a.scratch[worker.index]);
}

}  // namespace LEAFAGE_ISA_NAMESPACE
}  // namespace leafage
