// Sampling for one instruction set; contract: sampler.h.
#include <algorithm>
#include <cmath>
#include <limits>

#include "sampler.h"

#if defined(LEAFAGE_AVX512)
#include <immintrin.h>
#endif

namespace leafage {
namespace LEAFAGE_ISA_NAMESPACE {
namespace sampling {

#include "vec.h"

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kWeightScale = 1099511627776.0f;  // 2^40
// First try for the candidates of truncation: logits within this of the maximum, in units of temperature.
constexpr float kNear = 12.0f;

static inline bool any(IVec mask) {
#if defined(LEAFAGE_AVX512)
    return _mm512_test_epi32_mask((__m512i)mask, (__m512i)mask) != 0;
#else
    uint64_t words[8], all = 0;
    std::memcpy(words, &mask, sizeof words);
    for (int i = 0; i < 8; ++i) all |= words[i];
    return all != 0;
#endif
}

// Calls f(i, n) for runs of up to 16 lanes.
template <class F>
static inline void for_runs(int count, F&& f) {
    int i = 0;
    for (; i + 16 <= count; i += 16) f(i, 16);
    if (i < count) f(i, count - i);
}

// 16 logits; behind the end -inf.
static inline Vec load_run(const float* p, int n) {
    if (n == 16) return vload(p);
    float lanes[16];
    for (int i = 0; i < 16; ++i) lanes[i] = i < n ? p[i] : -kInfinity;
    return vload(lanes);
}

// Bits of a float as an integer in the same order: -NaN < -inf < ... < inf < NaN, and back.
static inline IVec ordered(Vec x) {
    IVec bits;
    std::memcpy(&bits, &x, sizeof bits);
    return bits ^ ((bits >> 31) & 0x7fffffff);
}
static inline float unordered(int32_t key) {
    key ^= (key >> 31) & 0x7fffffff;
    float x;
    std::memcpy(&x, &key, sizeof x);
    return x;
}

// The largest logit and the lowest id that has it. False when a logit is NaN or the largest is not finite.
static bool find_max(const float* logits, int vocab, float* max, int* id) {
    constexpr int32_t kLowest = std::numeric_limits<int32_t>::min();
    int32_t best = kLowest, worst = 0;
    int block = 0;
    for (int begin = 0; begin < vocab; begin += kSampleBlock) {
        int count = vocab - begin < kSampleBlock ? vocab - begin : kSampleBlock;
        IVec high[2] = {IVec{} + kLowest, IVec{} + kLowest}, low = {};
        for_runs(count, [&](int i, int n) {
            IVec key = ordered(load_run(logits + begin + i, n));
            IVec& h = high[i / 16 % 2];
            h = key > h ? key : h;
            low = key < low ? key : low;
        });
        high[0] = high[0] > high[1] ? high[0] : high[1];
        int32_t highs[16], lows[16];
        std::memcpy(highs, &high[0], sizeof highs);
        std::memcpy(lows, &low, sizeof lows);
        int32_t top = highs[0];
        for (int i = 0; i < 16; ++i) {
            top = highs[i] > top ? highs[i] : top;
            worst = lows[i] < worst ? lows[i] : worst;
        }
        if (top > best) {
            best = top;
            block = begin;
        }
    }
    *max = unordered(best);
    if (!std::isfinite(*max) || std::isnan(unordered(worst))) return false;
    if (*max == 0) block = 0;  // -0 equals 0 and may come first
    *id = block;
    while (logits[*id] != *max) ++*id;
    return true;
}

static inline uint64_t weight_of(float e) { return uint64_t(int64_t(e * kWeightScale)); }

// exps[i] = e^((logits[i] - max) * inverse); blocks: sums of weights; returns the sum of all.
static uint64_t exponentials(const float* logits, int vocab, float max, float inverse, float* exps, uint64_t* blocks) {
    Vec shift = vset(max), scale = vset(inverse);
    uint64_t total = 0;
    for (int begin = 0, b = 0; begin < vocab; begin += kSampleBlock, ++b) {
        int count = vocab - begin < kSampleBlock ? vocab - begin : kSampleBlock;
        for_runs(count, [&](int i, int n) {
            vstore_part(exps + begin + i, vexp((load_run(logits + begin + i, n) - shift) * scale), n);
        });
        int64_t sum = 0;
        for (int i = 0; i < count; ++i) sum += int64_t(exps[begin + i] * kWeightScale);
        blocks[b] = uint64_t(sum);
        total += uint64_t(sum);
    }
    return total;
}

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

// The tokens that may be drawn and their weights: all, or a list of candidates in order of id.
class Distribution {
  public:
    Distribution(const float* logits, int vocab, float max, const double* params, int top_k, SampleScratch& scratch)
        : logits_(logits), vocab_(vocab), s_(scratch) {
        double inverse = 1.0 / params[0];
        float scale = inverse < 1e30 ? float(inverse) : 1e30f;
        total_ = exponentials(logits, vocab, max, scale, s_.exps, s_.blocks);
        double top_p = params[1];
        float min_p = float(params[2]);
        bool cut_k = top_k > 0 && top_k < vocab, cut_p = top_p < 1.0;
        if (!cut_k && !cut_p && !(min_p > 0)) return;
        listed_ = true;
        if (min_p > 0) {
            collect(s_.exps, min_p);
            total_ = sum();
        } else {
            // Near the maximum first; when that does not reach, all tokens with a weight.
            collect(logits, max - kNear / scale);
            bool enough = cut_k ? count_ >= top_k : !(double(sum()) < top_p * double(total_));
            if (!enough) collect(s_.exps, 1.0f / kWeightScale);
        }
        if (cut_k && top_k < count_) keep_best(top_k);
        if (cut_k) total_ = sum();
        if (cut_p) keep_mass(top_p * double(total_));
        total_ = sum();
    }

    int draw(uint64_t seed, int64_t position) const {
        uint64_t target = draw_below(total_, seed, position);
        if (listed_) {
            int i = 0;
            while (target >= s_.candidates[i].weight) target -= s_.candidates[i++].weight;
            return s_.candidates[i].id;
        }
        int block = 0;
        while (target >= s_.blocks[block]) target -= s_.blocks[block++];
        int i = block * kSampleBlock;
        for (uint64_t w; target >= (w = weight_of(s_.exps[i])); ++i) target -= w;
        return i;
    }

  private:
    // Candidates are the tokens with values[i] >= least, in order of id.
    void collect(const float* values, float least) {
        count_ = 0;
        Vec bound = vset(least);
        for_runs(vocab_, [&](int i, int n) {
            if (!any(load_run(values + i, n) >= bound)) return;
            for (int j = i; j < i + n; ++j)
                if (values[j] >= least) s_.candidates[count_++] = {logits_[j], j, weight_of(s_.exps[j])};
        });
    }

    uint64_t sum() const {
        uint64_t total = 0;
        for (int i = 0; i < count_; ++i) total += s_.candidates[i].weight;
        return total;
    }

    // Keep what is not worse than (logit, id).
    void keep_from(const Candidate& last) {
        int kept = 0;
        for (int i = 0; i < count_; ++i)
            if (!Better()(last, s_.candidates[i])) s_.candidates[kept++] = s_.candidates[i];
        count_ = kept;
    }

    // The k best, and all that equal the last of them.
    void keep_best(int k) {
        std::copy(s_.candidates, s_.candidates + count_, s_.order);
        std::nth_element(s_.order, s_.order + k - 1, s_.order + count_, Better());
        keep_from({s_.order[k - 1].logit, vocab_, 0});
    }

    // The best while the mass before them is below `mass`. Halves the range that holds the last one.
    void keep_mass(double mass) {
        std::copy(s_.candidates, s_.candidates + count_, s_.order);
        Candidate *low = s_.order, *high = s_.order + count_;
        uint64_t before = 0;
        while (high - low > 32) {
            Candidate* middle = low + (high - low) / 2;
            std::nth_element(low, middle, high, Better());
            uint64_t half = before;
            for (Candidate* c = low; c < middle; ++c) half += c->weight;
            if (double(half) < mass) {
                low = middle;
                before = half;
            } else {
                high = middle;
            }
        }
        std::sort(low, high, Better());
        Candidate last = *low;
        for (Candidate* c = low; c < high && (c == low || double(before) < mass); ++c) {
            last = *c;
            before += c->weight;
        }
        keep_from(last);
    }

    const float* logits_;
    int vocab_;
    SampleScratch& s_;
    bool listed_ = false;
    int count_ = 0;
    uint64_t total_ = 0;
};

// Applies a row's penalties, bias and bans; restores the logits at the end.
class Edits {
  public:
    Edits(const SampleArgs& a, int row, float* saved)
        : a_(a), row_(row), logits_(a.logits + int64_t(row) * a.vocab), saved_(saved) {
        const double* p = a.params + row * 6;
        float repetition = float(p[3]), presence = float(p[4]), frequency = float(p[5]);
        for (int i = a.seen_offsets[row]; i < a.seen_offsets[row + 1]; ++i) {
            float& x = logits_[a.seen_ids[i]];
            *saved_++ = x;
            if (repetition != 1.0f) x = x > 0 ? x / repetition : x * repetition;
            if (a.seen_counts[i] > 0) {
                x -= frequency * float(a.seen_counts[i]);
                x -= presence;
            }
        }
        for (int i = a.bias_offsets[row]; i < a.bias_offsets[row + 1]; ++i) {
            float& x = logits_[a.bias_ids[i]];
            *saved_++ = x;
            x = a.bias_values[i] == -kInfinity ? -kInfinity : x + a.bias_values[i];
        }
    }
    ~Edits() {
        for (int i = a_.bias_offsets[row_ + 1]; i-- > a_.bias_offsets[row_];) logits_[a_.bias_ids[i]] = *--saved_;
        for (int i = a_.seen_offsets[row_ + 1]; i-- > a_.seen_offsets[row_];) logits_[a_.seen_ids[i]] = *--saved_;
    }

  private:
    const SampleArgs& a_;
    int row_;
    float* logits_;
    float* saved_;
};

static int32_t rank_of(const float* logits, int vocab, float value) {
    IVec greater = {};
    int32_t rank = 1;
    for_runs(vocab, [&](int i, int n) { greater -= load_run(logits + i, n) > vset(value); });
    int32_t lanes[16];
    std::memcpy(lanes, &greater, sizeof lanes);
    for (int32_t x : lanes) rank += x;
    return rank;
}

// The `count` best ids, best first, equal logits by id.
static void find_top(const float* logits, int vocab, int count, int32_t* ids) {
    if (count == 0) return;
    int found = 0;
    float least = -kInfinity;
    for_runs(vocab, [&](int i, int n) {
        if (found == count && !any(load_run(logits + i, n) > vset(least))) return;
        for (int j = i; j < i + n; ++j) {
            if (found == count && !(logits[j] > least)) continue;
            int at = found < count ? found++ : count - 1;
            for (; at > 0 && logits[j] > logits[ids[at - 1]]; --at) ids[at] = ids[at - 1];
            ids[at] = j;
            least = logits[ids[found - 1]];
        }
    });
}

static void sample_row(const SampleArgs& a, int row, SampleScratch& scratch) {
    int first = a.draw_offsets[row], last = a.draw_offsets[row + 1];
    a.usable[row] = 1;
    if (first == last) return;
    Edits edits(a, row, scratch.saved);
    const float* logits = a.logits + int64_t(row) * a.vocab;
    float max;
    int best;
    if (!find_max(logits, a.vocab, &max, &best)) {
        a.usable[row] = 0;
        return;
    }
    const double* params = a.params + row * 6;
    bool draws = false;
    for (int d = first; d < last; ++d) {
        if (a.targets[d] >= 0)
            a.tokens[d] = a.targets[d];
        else if (params[0] > 0)
            draws = true;
        else
            a.tokens[d] = best;
    }
    if (draws) {
        Distribution distribution(logits, a.vocab, max, params, a.limits[row * 2], scratch);
        for (int d = first; d < last; ++d)
            if (a.targets[d] < 0) a.tokens[d] = distribution.draw(a.seeds[d], a.positions[d]);
    }
    int num_top = a.limits[row * 2 + 1];
    if (num_top < 0) return;
    uint64_t total = exponentials(logits, a.vocab, max, 1.0f, scratch.exps, scratch.blocks);
    double log_sum = std::log(double(total) / double(kWeightScale));
    auto logprob = [&](int id) { return double(logits[id]) - double(max) - log_sum; };
    for (int d = first; d < last; ++d) {
        a.logprobs[d] = logprob(a.tokens[d]);
        a.ranks[d] = rank_of(logits, a.vocab, logits[a.tokens[d]]);
    }
    int32_t* ids = a.top_ids + int64_t(row) * a.max_top;
    find_top(logits, a.vocab, num_top, ids);
    for (int i = 0; i < num_top; ++i) a.top_logprobs[int64_t(row) * a.max_top + i] = logprob(ids[i]);
}

}  // namespace sampling

static void sample(const SampleArgs& a, Worker& worker) {
    for (int64_t row = worker.take(); row < a.rows; row = worker.take())
        sampling::sample_row(a, int(row), a.scratch[worker.index]);
}

}  // namespace LEAFAGE_ISA_NAMESPACE
}  // namespace leafage
