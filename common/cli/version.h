#pragma once

namespace recon {

// The project's version, as CMakeLists.txt has it: "0.1.0".
const char* Version();

}  // namespace recon
