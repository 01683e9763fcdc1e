#pragma once

#include <functional>
#include <string>

namespace recon {

// Calls `visit` with the paths of a limit's files, existing or not, in each control group that this process
// is in (a container's, a systemd unit's, a Slurm job's) and in all above: DIRECTORY/`v2_file` for version 2,
// DIRECTORY/`v1_file` for version 1's hierarchy of `controller`. `root` is before all paths that are read.
// Thread-safe; reads a file.
void VisitControlGroups(const std::string& root, const std::string& controller, const std::string& v2_file,
                        const std::string& v1_file,
                        const std::function<void(const std::string& path)>& visit);

}  // namespace recon
