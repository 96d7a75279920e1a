#define LEAFAGE_ISA_NAMESPACE isa_avx512_bf16
#include "attention_bf16.h"

#if defined(LEAFAGE_BF16)
#include "attention_run.h"
#endif

namespace leafage {

#if defined(LEAFAGE_BF16)
namespace isa_avx512_bf16 {

static void dot(const AttentionArgs& a, Worker& worker) { attention_by<Dot>(a, worker); }
static void tiles(const AttentionArgs& a, Worker& worker) {
    attention_amx()->begin();
    attention_by<Amx>(a, worker);
    attention_amx()->end();
}

}  // namespace isa_avx512_bf16

AttentionWay attention_dot() { return cpu_has("avx512bf16") ? isa_avx512_bf16::dot : nullptr; }
AttentionWay attention_tiles() { return attention_amx() && cpu_has("avx512bf16") ? isa_avx512_bf16::tiles : nullptr; }
#else
AttentionWay attention_dot() { return nullptr; }
AttentionWay attention_tiles() { return nullptr; }
#endif

}  // namespace leafage
