# Finds the C++ compiler and says what to do where there is none, or one that cannot build the kernels.
# Tried on x86-64: GCC 11 and 12, Clang 13 and 14. GCC 10, the first with AVX512-BF16, Clang 12 and Apple's are let pass untried.
set(COMPILERS "GCC 11 or later, Clang 13 or later, or Apple Clang 13 or later")
set(OLDEST_GNU 10)
set(OLDEST_Clang 12)
set(OLDEST_AppleClang 13)
set(REMEDY "Install one (Debian and Ubuntu: apt install g++, Fedora: dnf install gcc-c++, macOS: xcode-select --install)
  or name it: CXX=g++-12 pip install .
  A wheel of Leafage needs no compiler: pip install leafage-*.whl")

include(CheckLanguage)
check_language(CXX)
if(NOT CMAKE_CXX_COMPILER)
  message(FATAL_ERROR "Leafage is built from source here, and no C++ compiler was found (CXX='$ENV{CXX}').
  Needed: ${COMPILERS}.
  ${REMEDY}")
endif()
enable_language(CXX)
set(OLDEST "${OLDEST_${CMAKE_CXX_COMPILER_ID}}")
if(OLDEST STREQUAL "" OR CMAKE_CXX_COMPILER_VERSION VERSION_LESS "${OLDEST}")
  message(FATAL_ERROR "Leafage cannot be built with ${CMAKE_CXX_COMPILER_ID} ${CMAKE_CXX_COMPILER_VERSION} (${CMAKE_CXX_COMPILER}).
  Needed: ${COMPILERS}.
  ${REMEDY}")
endif()

# The CPU that is compiled for. On macOS it can be another than this machine's.
set(TARGET_CPU "${CMAKE_SYSTEM_PROCESSOR}")
if(CMAKE_OSX_ARCHITECTURES)
  if(CMAKE_OSX_ARCHITECTURES MATCHES ";")
    message(FATAL_ERROR "Leafage is built for one CPU at a time, not for '${CMAKE_OSX_ARCHITECTURES}'.
  Set ARCHFLAGS='-arch arm64' or ARCHFLAGS='-arch x86_64'.")
  endif()
  set(TARGET_CPU "${CMAKE_OSX_ARCHITECTURES}")
endif()
