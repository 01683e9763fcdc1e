#pragma once

#include "worker/data/dataset.h"

namespace recon {

// Gaussian clusters around fixed random centres, one per class: a data set that needs no files. The same
// arguments give the same samples everywhere; a sample is made when it is read.
TrainAndTest MakeClusters(uint32_t train, uint32_t test, uint32_t features, uint32_t classes);

}  // namespace recon
