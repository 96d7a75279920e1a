// The ops, as one table of functions per instruction set. Every function is called by all members of the team
// with the same arguments and splits the work itself; the program puts a barrier after each op. The result of
// a row never depends on other rows, on the number of threads or on who took which task.
#pragma once
#include "common.h"
#include "team.h"

namespace leafage {

struct PackedWeight;  // weights.h

// out[r, column + j] (+)= sum_k x[r, k] * w[j, k] (+ bias), for several weights side by side.
struct LinearArgs {
    const float* x;
    int ldx;
    int rows;
    int num_weights;
    const PackedWeight* const* weights;  // same number of columns (k) each
    float* out;
    int ldo;
    const float* bias;  // over all outputs, or null
    bool accumulate;
    uint8_t* shared;  // linear_shared_bytes(args of the largest call) bytes, 64-byte aligned, shared by the team
    bool precise = false;  // finer activations for one more dot product a group; linear_layout.h
    // Weights of the call that follows with as many rows, if one does: their beginning is fetched ahead.
    int num_next = 0;
    const PackedWeight* const* next = nullptr;
};

struct EmbedArgs {
    const PackedWeight* table;
    const int32_t* token_ids;
    int rows;
    float* out;
    int ldo;
    float scale;
};

// How K and V are kept; int8 with a scale per token and KV head.
enum class KVDtype { kBf16, kInt8 };

// One layer of the paged cache. A block holds block_size tokens; layout: attention.h.
struct KVLayer {
    uint8_t* base;        // of block 0
    size_t block_stride;  // bytes from a block to the next one: the other layers of a block lie between
    int block_size;
    int num_kv_heads;
    int head_dim;
    KVDtype dtype;
};

struct KVWriteArgs {
    KVLayer kv;
    const float* x;
    int ldx;
    int rows;
    int k_column, v_column;
    const int32_t* slots;  // per row: block * block_size + offset; -1 writes nothing
};

// One sequence's rows of this step: positions start .. start + num_rows - 1, rows row .. row + num_rows - 1.
struct AttentionItem {
    int32_t row, num_rows, start;
    const int32_t* table;  // block table, long enough for all positions
};

struct AttentionArgs {
    KVLayer kv;
    const float* q;  // points at the first query column
    int ldq;
    float* out;
    int ldo;
    int num_heads;
    float scale;
    float softcap;  // 0: none
    int window;     // 0: none
    int num_items;
    const AttentionItem* items;
    uint8_t* shared;  // attention_shared_bytes bytes, 64-byte aligned, shared by the team
    size_t shared_bytes;
    uint64_t step = 0;  // not 0: calls with the same number have the same items
};

struct NormArgs {
    const float* x;
    int ldx;
    float* out;
    int ldo;
    int rows, width;
    const float* weight;
    float eps;
    int num_heads;  // 1 for a whole row; else slices of `width` columns each
};

struct RopeArgs {
    float* x;  // points at the first column
    int ldx;
    int rows, num_heads, head_dim, rotary_dim;
    bool interleaved;
    const int32_t* positions;
    const float* table;  // [position][rotary_dim]: rotary_dim/2 cos, then rotary_dim/2 sin
};

enum class Activation { kSilu, kGeluTanh };

struct ActMulArgs {
    const float* x;
    int ldx;
    float* out;
    int ldo;
    int rows, width;  // width of out
    Activation activation;
};

struct AddArgs {
    float* x;
    const float* y;
    int rows, width;
};

struct SoftcapArgs {
    float* x;
    int rows, width;
    float cap;
};

struct SampleArgs;  // sampler.h

struct Kernels {
    const char* name;
    void (*linear)(const LinearArgs&, Worker&);
    void (*embed)(const EmbedArgs&, Worker&);
    void (*kv_write)(const KVWriteArgs&, Worker&);
    void (*attention)(const AttentionArgs&, Worker&);
    void (*rms_norm)(const NormArgs&, Worker&);
    void (*rope)(const RopeArgs&, Worker&);
    void (*act_mul)(const ActMulArgs&, Worker&);
    void (*add)(const AddArgs&, Worker&);
    void (*softcap)(const SoftcapArgs&, Worker&);
    void (*sample)(const SampleArgs&, Worker&);
};

// Null when the variant was not built.
const Kernels* kernels_avx512();
const Kernels* kernels_avx2();
const Kernels* kernels_neon();
const Kernels* kernels_plain();

// Whether this CPU has a feature that kernels ask for, by GCC's name (x86) or Linux's (ARM), and the environment variable
// LEAFAGE_CPU_WITHOUT does not list it (comma between several): a test's way to a smaller CPU.
bool cpu_has(const char* feature);

// Whether weights that are read once are fetched into L2: on Intel's CPUs L1 has too few fill buffers (16 lines) to keep
// memory busy by itself, and L2 has three times as many.
extern const bool fetch_into_l2;

// The table chosen at import (or by set_variant); CPU features decide. The first call throws std::invalid_argument when
// LEAFAGE_KERNELS names kernels that do not run here.
const Kernels& kernels();

// Sizes of the shared scratch the ops ask for.
size_t linear_shared_bytes(int rows, int max_k);
size_t attention_shared_bytes(int max_rows, int num_heads, int head_dim);
size_t worker_scratch_bytes();

}  // namespace leafage
