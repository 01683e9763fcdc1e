#pragma once

#include <cstdint>

namespace recon {

// Passes over the training data are counted from 0 on the wire and in files, and evaluations by the passes
// before them. People see both from 1: data epoch 3 is the third pass, and the evaluation of data epoch 3
// comes after it. `training`: of a training split, not of an evaluation.
inline uint32_t ShownDataEpoch(uint32_t data_epoch, bool training) {
  return training ? data_epoch + 1 : data_epoch;
}

}  // namespace recon
