// Lets a wheel that is built with a new compiler load beside the C and C++ libraries of older systems (glibc 2.27,
// libstdc++ of GCC 8). Only built with -DLEAFAGE_MANYLINUX=ON, by scripts/wheel, whose check names any symbol that is
// still too new.
//
// GCC's headers call functions that its libstdc++ got only with GCC 11 or 12. Here are hidden definitions of these,
// made of what the older library has. None is on a hot path. Sources: libstdc++-v3/config/abi/pre/gnu.ver (which
// version has what), libsupc++/exception_ptr.h, src/c++11/condition_variable.cc of GCC 12.
#include <pthread.h>

#include <condition_variable>
#include <cxxabi.h>
#include <exception>
#include <mutex>

#define HIDDEN(symbol) __asm__(symbol) __attribute__((visibility("hidden"), used))

extern "C" {

// glibc 2.32: whether the process has one thread. shared_ptr then counts without atomics; 0 means it always uses them.
char hidden_libc_single_threaded HIDDEN("__libc_single_threaded") = 0;

// glibc 2.29 has a second `log` that leaves errno alone. The linker's --wrap=log leads all calls here.
double old_log(double);
__asm__(".symver old_log, log@GLIBC_2.2.5");
__attribute__((visibility("hidden"))) double __wrap_log(double x) { return old_log(x); }

// libstdc++ 3.4.29 (GCC 11).
[[noreturn]] void throw_bad_array_new_length() HIDDEN("_ZSt28__throw_bad_array_new_lengthv");
void throw_bad_array_new_length() { abi::__cxa_throw_bad_array_new_length(); }

// libstdc++ 3.4.30 (GCC 12): condition_variable::wait that is noexcept; 3.4.11 has one that is not.
void condition_wait(std::condition_variable*, std::unique_lock<std::mutex>*)
    HIDDEN("_ZNSt18condition_variable4waitERSt11unique_lockISt5mutexE");
void condition_wait(std::condition_variable* self, std::unique_lock<std::mutex>* lock) {
    pthread_cond_wait(self->native_handle(), lock->mutex()->native_handle());
}

// CXXABI 1.3.13 (GCC 11): the two halves of exception_ptr's copy and destruction, which older headers called whole.
void old_copy(void* self, const void* other) __asm__("_ZNSt15__exception_ptr13exception_ptrC1ERKS0_");
void old_destroy(void* self) __asm__("_ZNSt15__exception_ptr13exception_ptrD1Ev");

void add_reference(void*) HIDDEN("_ZNSt15__exception_ptr13exception_ptr9_M_addrefEv");
void add_reference(void* self) {
    void* never_destroyed = nullptr;  // an exception_ptr is one pointer
    static_assert(sizeof(std::exception_ptr) == sizeof(never_destroyed), "exception_ptr has another layout");
    old_copy(&never_destroyed, self);
}

void drop_reference(void*) HIDDEN("_ZNSt15__exception_ptr13exception_ptr10_M_releaseEv");
void drop_reference(void* self) { old_destroy(self); }

}  // extern "C"
