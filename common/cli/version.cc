#include "common/cli/version.h"

namespace recon {

const char* Version() { return RECON_VERSION; }

}  // namespace recon
