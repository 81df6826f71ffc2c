#include "processor.hpp"

#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdint>

namespace {

// Some compilers' own check does not know it.
bool processor_has_f16c() {
    uint32_t a, b, c, d;
    return __get_cpuid(1, &a, &b, &c, &d) && c >> 29 & 1;
}

// Which registers the operating system keeps for each thread.
uint64_t kept_registers() {
    uint32_t low, high;
    asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return (uint64_t)high << 32 | low;
}

// Intel's manual, volume 1, chapter 18: leaf 7 tells of tiles (bit 24) and their bf16 (bit 22); registers 17 and 18 are theirs.
bool processor_has_tiles() {
    constexpr uint32_t TILES = 1u << 24 | 1u << 22;
    constexpr uint64_t REGISTERS = 3u << 17;
    uint32_t a, b, c, d;
    return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (d & TILES) == TILES && (kept_registers() & REGISTERS) == REGISTERS;
}

// Linux gives a process the registers of tiles when it asks (Documentation/arch/x86/xstate.rst); asking again changes nothing.
bool system_gives_tiles() {
#ifdef __linux__
    constexpr long ARCH_REQ_XCOMP_PERM = 0x1023, XFEATURE_XTILEDATA = 18;
    return syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0;
#else
    return false;
#endif
}

}  // namespace

// The compiler's own check asks the operating system too.
bool has_avx2() { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && processor_has_f16c(); }

bool has_avx512() {
    return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512vl");
}

bool has_amx() { return has_avx512() && __builtin_cpu_supports("avx512vnni") && processor_has_tiles() && system_gives_tiles(); }
