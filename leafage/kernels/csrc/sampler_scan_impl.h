// Vector passes over a row of logits, for sampler_impl.h. Included once per instruction set, in its namespace.
// As many lanes as a register has: ids are taken in order and sums are of integers, so the width changes nothing.

#if defined(LEAFAGE_AVX512)
constexpr int kWidth = 16;
#elif defined(LEAFAGE_AVX2)
constexpr int kWidth = 8;
#else
constexpr int kWidth = 4;
#endif
typedef float Vec __attribute__((vector_size(4 * kWidth)));
typedef int32_t IVec __attribute__((vector_size(4 * kWidth)));

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kWeightScale = 1099511627776.0f;  // 2^40
// e^-x has no weight from here on: e^-28 * 2^40 = 0.76.
constexpr float kWeightless = 28.0f;

static inline Vec vset(float x) { return Vec{} + x; }
static inline Vec vload(const float* p) {
    Vec v;
    std::memcpy(&v, p, sizeof v);
    return v;
}
static inline void vstore(float* p, Vec v) { std::memcpy(p, &v, sizeof v); }

// Calls f(i, n) for runs of up to kWidth lanes.
template <class F>
static inline void for_runs(int count, F&& f) {
    int i = 0;
    for (; i + kWidth <= count; i += kWidth) f(i, kWidth);
    if (i < count) f(i, count - i);
}

// A run of logits; behind the end -inf.
static inline Vec load_run(const float* p, int n) {
    if (n == kWidth) return vload(p);
    float lanes[kWidth];
    for (int i = 0; i < kWidth; ++i) lanes[i] = i < n ? p[i] : -kInfinity;
    return vload(lanes);
}

static inline IVec bits_of(Vec x) {
    IVec bits;
    std::memcpy(&bits, &x, sizeof bits);
    return bits;
}

// x where the mask is set, else y.
static inline Vec choose(IVec mask, Vec x, Vec y) {
    IVec bits = (bits_of(x) & mask) | (bits_of(y) & ~mask);
    std::memcpy(&x, &bits, sizeof x);
    return x;
}

// a > b ? a : b, and the like: b when either is NaN.
#if defined(LEAFAGE_AVX512)
static inline Vec larger(Vec a, Vec b) { return (Vec)_mm512_max_ps((__m512)a, (__m512)b); }
static inline Vec smaller(Vec a, Vec b) { return (Vec)_mm512_min_ps((__m512)a, (__m512)b); }
#elif defined(LEAFAGE_AVX2)
static inline Vec larger(Vec a, Vec b) { return (Vec)_mm256_max_ps((__m256)a, (__m256)b); }
static inline Vec smaller(Vec a, Vec b) { return (Vec)_mm256_min_ps((__m256)a, (__m256)b); }
#else
static inline Vec larger(Vec a, Vec b) { return a > b ? a : b; }
static inline Vec smaller(Vec a, Vec b) { return a < b ? a : b; }
#endif

// One bit per lane of a comparison's result.
static inline uint32_t lane_bits(IVec mask) {
#if defined(LEAFAGE_AVX512)
    return _mm512_movepi32_mask((__m512i)mask);
#elif defined(LEAFAGE_AVX2)
    return uint32_t(_mm256_movemask_ps((__m256)mask));
#else
    uint64_t words[2];
    std::memcpy(words, &mask, sizeof words);
    if ((words[0] | words[1]) == 0) return 0;
    uint32_t bits = 0;
    for (int i = 0; i < kWidth; ++i) bits |= uint32_t(mask[i] != 0) << i;
    return bits;
#endif
}

static inline float largest_lane(Vec x) {
#if defined(LEAFAGE_AVX512)
    return _mm512_reduce_max_ps((__m512)x);
#else
    float lanes[kWidth];
    vstore(lanes, x);
    for (int half = kWidth / 2; half > 0; half /= 2)
        for (int i = 0; i < half; ++i) lanes[i] = lanes[i + half] > lanes[i] ? lanes[i + half] : lanes[i];
    return lanes[0];
#endif
}

// Appends the lanes of `bits` to values[count ...] and ids[count ...], which have room for 16 more than they hold.
static inline int append_lanes(uint32_t bits, Vec x, IVec id, float* values, int32_t* ids, int count) {
#if defined(LEAFAGE_AVX512)
    vstore(values + count, (Vec)_mm512_maskz_compress_ps(__mmask16(bits), (__m512)x));
    _mm512_storeu_si512(ids + count, _mm512_maskz_compress_epi32(__mmask16(bits), (__m512i)id));
    return count + __builtin_popcount(bits);
#else
    float v[kWidth];
    int32_t k[kWidth];
    vstore(v, x);
    std::memcpy(k, &id, sizeof k);
    for (; bits != 0; bits &= bits - 1) {
        int lane = __builtin_ctz(bits);
        values[count] = v[lane];
        ids[count++] = k[lane];
    }
    return count;
#endif
}

alignas(64) constexpr int32_t kLanes[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
// ids[i ...]; without a list an index is its own id.
static inline IVec load_ids(const int32_t* ids, int i) {
    IVec v;
    std::memcpy(&v, ids == nullptr ? kLanes : ids + i, sizeof v);
    return ids == nullptr ? v + i : v;
}

// 2^40 * e^x for x <= 0, e^-87.3 below that: Cody-Waite reduction and a polynomial of degree 6, about 2 ulp. Bit for
// bit what reference_sampling.exp gives.
static inline __attribute__((always_inline)) Vec scaled_exp(Vec x) {
    x = larger(x, vset(-87.3f));
    Vec magic = vset(12582912.0f), rounded = x * 1.44269504f + magic, n = rounded - magic;
    Vec r = x - n * 0.693359375f;
    r = r + n * 2.12194440e-4f;
    Vec p = vset(1.9875691500e-4f);
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.0f;
    IVec bits = bits_of(p) + ((bits_of(rounded) + 40) << 23);  // the low bits of `rounded` are n
    std::memcpy(&p, &bits, sizeof p);
    return p;
}

// The weight of what scaled_exp gave.
static inline uint64_t weight_of(float e) { return uint64_t(int64_t(e)); }

// Sums weights of up to kSampleBlock results of scaled_exp.
class WeightSum {
  public:
#if defined(LEAFAGE_AVX512)
    void add(Vec e) {
        __m512 x = (__m512)e;
        low_ = _mm512_add_epi64(low_, _mm512_cvttps_epi64(_mm512_castps512_ps256(x)));
        high_ = _mm512_add_epi64(high_, _mm512_cvttps_epi64(_mm512_extractf32x8_ps(x, 1)));
    }
    uint64_t total() const { return uint64_t(_mm512_reduce_add_epi64(_mm512_add_epi64(low_, high_))); }

  private:
    __m512i low_ = _mm512_setzero_si512(), high_ = _mm512_setzero_si512();
#elif defined(LEAFAGE_AVX2)
    // Whole numbers below 2^53: doubles add them exactly.
    void add(Vec e) {
        __m256 x = (__m256)e;
        constexpr int kTruncate = _MM_FROUND_TO_ZERO | _MM_FROUND_NO_EXC;
        low_ = _mm256_add_pd(low_, _mm256_round_pd(_mm256_cvtps_pd(_mm256_castps256_ps128(x)), kTruncate));
        high_ = _mm256_add_pd(high_, _mm256_round_pd(_mm256_cvtps_pd(_mm256_extractf128_ps(x, 1)), kTruncate));
    }
    uint64_t total() const {
        double lanes[4];
        _mm256_storeu_pd(lanes, _mm256_add_pd(low_, high_));
        return uint64_t(int64_t(lanes[0] + lanes[1] + lanes[2] + lanes[3]));
    }

  private:
    __m256d low_ = _mm256_setzero_pd(), high_ = _mm256_setzero_pd();
#else
    void add(Vec e) {
        float lanes[kWidth];
        vstore(lanes, e);
        for (float x : lanes) sum_ += int64_t(x);
    }
    uint64_t total() const { return uint64_t(sum_); }

  private:
    int64_t sum_ = 0;
#endif
};

// The largest logit of each block, and of all with the lowest id that has it. False when a logit is NaN or the
// largest is not finite.
static bool find_maxima(const float* logits, int vocab, float* maxima, float* max, int* id) {
    constexpr int32_t kInfinityBits = 0x7f800000;
    float best = -kInfinity;
    int block = 0;
    IVec magnitude = {};
    for (int begin = 0; begin < vocab; begin += kSampleBlock) {
        int count = vocab - begin < kSampleBlock ? vocab - begin : kSampleBlock;
        Vec high[2] = {vset(-kInfinity), vset(-kInfinity)};
        for_runs(count, [&](int i, int n) {
            Vec x = load_run(logits + begin + i, n), &h = high[i / kWidth % 2];
            IVec bits = bits_of(x) & 0x7fffffff;
            h = larger(x, h);
            magnitude = bits > magnitude ? bits : magnitude;
        });
        float top = largest_lane(larger(high[0], high[1]));
        maxima[begin / kSampleBlock] = top;
        if (top > best) {
            best = top;
            block = begin;
        }
    }
    *max = best;
    if (!std::isfinite(best) || lane_bits(magnitude > kInfinityBits) != 0) return false;
    *id = block;
    while (logits[*id] != best) ++*id;
    return true;
}

// How many logits are above `value`.
static int count_above(const float* logits, int vocab, const float* maxima, float value) {
    IVec greater = {};
    for (int begin = 0; begin < vocab; begin += kSampleBlock) {
        if (!(maxima[begin / kSampleBlock] > value)) continue;
        int count = vocab - begin < kSampleBlock ? vocab - begin : kSampleBlock;
        for_runs(count, [&](int i, int n) { greater -= load_run(logits + begin + i, n) > vset(value); });
    }
    int32_t lanes[kWidth], total = 0;
    std::memcpy(lanes, &greater, sizeof lanes);
    for (int32_t x : lanes) total += x;
    return total;
}

// The `count` best ids, best first, equal logits by id.
static void find_top(const float* logits, int vocab, const float* maxima, int count, int32_t* ids) {
    if (count == 0) return;
    int found = 0;
    float least = -kInfinity;
    for (int begin = 0; begin < vocab; begin += kSampleBlock) {
        if (found == count && !(maxima[begin / kSampleBlock] > least)) continue;
        int size = vocab - begin < kSampleBlock ? vocab - begin : kSampleBlock;
        for_runs(size, [&](int i, int n) {
            uint32_t bits = found < count ? (1u << n) - 1 : lane_bits(load_run(logits + begin + i, n) > vset(least));
            for (; bits != 0; bits &= bits - 1) {
                int id = begin + i + __builtin_ctz(bits);
                if (found == count && !(logits[id] > least)) continue;
                int at = found < count ? found++ : count - 1;
                for (; at > 0 && logits[id] > logits[ids[at - 1]]; --at) ids[at] = ids[at - 1];
                ids[at] = id;
                least = logits[ids[found - 1]];
            }
        });
    }
}

// The lowest finite float up to `high` for which `holds`, which is true for `high` and all between.
template <class F>
static float lowest(float high, F&& holds) {
    auto flip = [](int32_t bits) { return bits ^ ((bits >> 31) & 0x7fffffff); };  // to the order of floats, and back
    int32_t bits;
    std::memcpy(&bits, &high, sizeof bits);
    int64_t yes = flip(bits), no = flip(int32_t(0xff800000));  // -inf
    auto value = [&](int64_t key) {
        int32_t b = flip(int32_t(key));
        float x;
        std::memcpy(&x, &b, sizeof x);
        return x;
    };
    while (yes - no > 1) {
        int64_t middle = no + (yes - no) / 2;
        (holds(value(middle)) ? yes : no) = middle;
    }
    return value(yes);
}
