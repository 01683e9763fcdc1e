#include "worker/data/cifar_dataset.h"

#include <sys/stat.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/regular_file.h"
#include "common/base/status_macros.h"

namespace recon {
namespace {

constexpr size_t kPixels = 3 * 32 * 32;
constexpr size_t kRecordBytes = 1 + kPixels;
constexpr uint32_t kClasses = 10;

}  // namespace

absl::StatusOr<std::unique_ptr<ByteImages>> DecodeCifar10(const std::string& name,
                                                          const std::vector<std::string>& files) {
  std::vector<uint8_t> pixels;
  std::vector<uint8_t> labels;
  for (const std::string& file : files) {
    if (file.empty() || file.size() % kRecordBytes != 0) {
      return absl::DataLossError(
          absl::StrCat(name, ": ", file.size(), " bytes, expected a multiple of ", kRecordBytes));
    }
    for (size_t at = 0; at < file.size(); at += kRecordBytes) {
      const auto label = static_cast<uint8_t>(file[at]);
      if (label >= kClasses) {
        return absl::DataLossError(
            absl::StrCat(name, ": record ", at / kRecordBytes, " has label ", label, ", allowed are 0 to 9"));
      }
      labels.push_back(label);
      pixels.insert(pixels.end(), file.begin() + static_cast<ptrdiff_t>(at + 1),
                    file.begin() + static_cast<ptrdiff_t>(at + kRecordBytes));
    }
  }
  return std::make_unique<ByteImages>(std::move(pixels), std::move(labels), kPixels, kClasses);
}

absl::StatusOr<TrainAndTest> OpenCifar10(const std::string& directory) {
  const std::string inner = directory + "/cifar-10-batches-bin";
  struct stat info;
  // Where there is none, the file that was looked for says more.
  if (const absl::Status found = CheckDirectory(directory); !absl::IsNotFound(found))
    RECON_RETURN_IF_ERROR(found);
  const std::string folder = stat(inner.c_str(), &info) == 0 ? inner : directory;
  if (folder == inner) RECON_RETURN_IF_ERROR(CheckDirectory(folder));
  std::vector<std::string> train_files(5);
  for (int i = 0; i < 5; ++i) {
    RECON_ASSIGN_OR_RETURN(train_files[i], ReadFileOrGz(absl::StrCat(folder, "/data_batch_", i + 1, ".bin")));
  }
  RECON_ASSIGN_OR_RETURN(std::string test_file, ReadFileOrGz(folder + "/test_batch.bin"));
  RECON_ASSIGN_OR_RETURN(auto train, DecodeCifar10(folder + "/data_batch_*.bin", train_files));
  RECON_ASSIGN_OR_RETURN(auto test, DecodeCifar10(folder + "/test_batch.bin", {test_file}));
  return WithTrainingScale(std::move(train), std::move(test));
}

}  // namespace recon
