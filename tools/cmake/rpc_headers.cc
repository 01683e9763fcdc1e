// Precompiles rpc_headers.h.
#include "tools/cmake/rpc_headers.h"
