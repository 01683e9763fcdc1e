#pragma once

// The same, and gRPC, Protocol Buffers and the messages.

#include "tools/cmake/headers.h"

#include "google/protobuf/message.h"
#include "google/protobuf/util/message_differencer.h"
#include "grpcpp/grpcpp.h"
#include "prometheus/counter.h"
#include "prometheus/gauge.h"
#include "prometheus/histogram.h"
#include "prometheus/registry.h"
#include "proto/cluster.grpc.pb.h"
#include "proto/cluster.pb.h"
#include "proto/control.grpc.pb.h"
#include "proto/control.pb.h"
#include "proto/manifest.pb.h"
