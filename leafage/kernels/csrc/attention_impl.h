// kv_write and attention, for one instruction set. Contract and layout: attention.h; who does what:
// attention_plan.h; the work on one partition: attention_task.h.
#pragma once
#include "attention_bf16.h"
#include "attention_run.h"
#include "kv_write_impl.h"

namespace leafage {
namespace LEAFAGE_ISA_NAMESPACE {

#if defined(LEAFAGE_AVX512)
void attention_fma(const AttentionArgs& a, Worker& worker) { attention_by<Fma>(a, worker); }
// The bits differ: chosen once per machine, never per call.
static void attention(const AttentionArgs& a, Worker& worker) {
    static const AttentionWay way = attention_tiles()                       ? attention_tiles()
                                    : attention_dot() && bf16_dot_is_fast() ? attention_dot()
                                                                            : attention_fma;
    way(a, worker);
}
#elif defined(LEAFAGE_AVX2) || defined(LEAFAGE_NEON)
static void attention(const AttentionArgs& a, Worker& worker) { attention_by<Fma>(a, worker); }
#else
static void attention(const AttentionArgs& a, Worker& worker) { attention_by<Plain>(a, worker); }
#endif

}  // namespace LEAFAGE_ISA_NAMESPACE
}  // namespace leafage
