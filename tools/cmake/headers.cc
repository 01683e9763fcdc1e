// Precompiles headers.h.
#include "tools/cmake/headers.h"
