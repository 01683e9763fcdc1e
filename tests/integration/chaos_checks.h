#pragma once

#include <sys/types.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "common/snapshot/snapshot_reader.h"
#include "common/storage/local_store.h"
#include "common/tensor/param_layout.h"
#include "tests/support/temp_dir.h"

namespace recon {

// What is looked at of a job whose workers are chaos_worker.

// A number that an environment variable has.
inline uint32_t FromEnvironment(const char* name, uint32_t otherwise) {
  const char* text = std::getenv(name);
  uint32_t value = 0;
  return text != nullptr && absl::SimpleAtoi(text, &value) ? value : otherwise;
}

// What a worker has said in its file.
struct Said {
  uint64_t acknowledged = 0;
  uint64_t given_up = 0;
};

inline Said ReadSaid(const std::string& file) {
  Said said;
  std::istringstream lines(ReadWholeFile(file));
  for (std::string line; std::getline(lines, line);) {
    ++(line == "a" ? said.acknowledged : said.given_up);
  }
  return said;
}

inline uint64_t ResidentBytes(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/statm");
  uint64_t total = 0, resident = 0;
  file >> total >> resident;
  return resident * static_cast<uint64_t>(sysconf(_SC_PAGE_SIZE));
}

// All parameters of the newest snapshot, tensor by tensor.
inline std::vector<std::vector<float>> NewestValues(const std::string& directory) {
  const auto store = *LocalStore::Open(directory, /*writer=*/false);
  const SnapshotReader reader(store.get());
  const std::vector<Generation> generations = *reader.List();
  const Manifest manifest = *reader.ReadManifest(generations.back());
  const ParamLayout layout = *ParamLayout::Create(manifest.model());
  std::vector<std::vector<float>> tensors;
  for (uint32_t shard = 0; shard < layout.shard_count(); ++shard) {
    const std::vector<PageRef> pages = *reader.ReadChunk(manifest, static_cast<int>(shard));
    std::vector<float> values;
    for (uint32_t page = 0; page < pages.size(); ++page) {
      values.insert(values.end(), pages[page].data(),
                    pages[page].data() + layout.shards()[shard].PageSize(page));
    }
    tensors.push_back(std::move(values));
  }
  return tensors;
}

}  // namespace recon
