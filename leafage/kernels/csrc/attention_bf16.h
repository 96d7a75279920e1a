// Ways of AVX-512 attention that need AVX512-BF16, in a source file of their own: the rest of the variant does
// without, on Cascade Lake and Ice Lake.
#pragma once
#include "kernels.h"

namespace leafage {

using AttentionWay = void (*)(const AttentionArgs&, Worker&);

// By bf16 dot products; null when this build or the CPU has none.
AttentionWay attention_dot();

// On AMX tiles; null when this build, the CPU or the operating system has none.
AttentionWay attention_tiles();

}  // namespace leafage
