#define LEAFAGE_ISA_NAMESPACE isa_avx2
#define LEAFAGE_ISA_NAME "avx2"
#define LEAFAGE_ISA_TABLE kernels_avx2
#include "kernels.h"
#if defined(LEAFAGE_AVX2)
#include "kernels_table.h"
#else
namespace leafage {
const Kernels* kernels_avx2() { return nullptr; }
}
#endif
