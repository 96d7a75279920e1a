// 16 floats as one value on every instruction set: the compiler lowers it to one, two or four registers.
// Only multiplication, addition and comparison are used, so all instruction sets give the same bits.
// Included inside the namespace of an instruction set (several definitions must not meet at link time).

typedef float Vec __attribute__((vector_size(64)));
typedef int32_t IVec __attribute__((vector_size(64)));

static inline __attribute__((always_inline)) Vec vload(const float* p) {
    Vec v;
    std::memcpy(&v, p, sizeof v);
    return v;
}
static inline __attribute__((always_inline)) void vstore(float* p, Vec v) { std::memcpy(p, &v, sizeof v); }
static inline __attribute__((always_inline)) Vec vload_part(const float* p, int n) {
    if (n == 16) return vload(p);
    Vec v = {};
    std::memcpy(&v, p, sizeof(float) * size_t(n));
    return v;
}
static inline __attribute__((always_inline)) void vstore_part(float* p, Vec v, int n) {
    if (n == 16) return vstore(p, v);
    std::memcpy(p, &v, sizeof(float) * size_t(n));
}
static inline __attribute__((always_inline)) Vec vset(float x) { return Vec{} + x; }

// Sum of the lanes in a fixed tree.
static inline __attribute__((always_inline)) float vsum(Vec v) {
    float a[16];
    std::memcpy(a, &v, sizeof a);
    for (int step = 8; step > 0; step /= 2)
        for (int i = 0; i < step; ++i) a[i] += a[i + step];
    return a[0];
}

// e^x: Cody-Waite reduction and a polynomial of degree 6, about 2 ulp. Below -87.3 it returns e^-87.3 (1e-38),
// above 88.3 it returns e^88.3: no infinities, so no 0 * inf behind it. NaN stays NaN.
static inline __attribute__((always_inline)) Vec vexp(Vec x) {
    Vec hi = vset(88.3f), lo = vset(-87.3f);
    x = x > hi ? hi : x;
    x = x < lo ? lo : x;
    Vec magic = vset(12582912.0f);
    Vec n = (x * 1.44269504f + magic) - magic;
    Vec r = x - n * 0.693359375f;
    r = r + n * 2.12194440e-4f;
    Vec p = vset(1.9875691500e-4f);
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.0f;
    IVec e = (__builtin_convertvector(n, IVec) + 127) << 23;
    Vec scale;
    std::memcpy(&scale, &e, sizeof scale);
    return p * scale;
}

static inline __attribute__((always_inline)) Vec vsigmoid(Vec x) { return 1.0f / (1.0f + vexp(-x)); }
static inline __attribute__((always_inline)) Vec vtanh(Vec x) { return 2.0f * vsigmoid(2.0f * x) - 1.0f; }
