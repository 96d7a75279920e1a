#define LEAFAGE_ISA_NAMESPACE isa_avx512
#define LEAFAGE_ISA_NAME "avx512"
#define LEAFAGE_ISA_TABLE kernels_avx512
#include "kernels.h"
#if defined(LEAFAGE_AVX512)
#include "kernels_table.h"
#else
namespace leafage {
const Kernels* kernels_avx512() { return nullptr; }
}
#endif
