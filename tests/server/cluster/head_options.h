#pragma once

#include "server/cluster/cluster.h"
#include "server/data_plane/param_server.h"
#include "tests/server/cluster/small_cluster.h"

namespace recon {

// A head of the small job whose other servers follow `cluster`, which must outlive the parameters.
inline ParamServer::Options HeadParamOptions(Cluster* cluster) {
  ParamServer::Options options;
  options.rules = ClusterRules(0, 1);
  options.apply_threads = 1;
  options.servers = kClusterServers;
  options.followers = cluster;
  return options;
}

}  // namespace recon
