// The Python module recon._core: a worker without a model of its own, and collectives.

#include "common/base/memory_limit.h"
#include "common/base/process.h"
#include "common/cli/version.h"
#include "worker/data/dataset.h"
#include "worker/python/collective.h"
#include "worker/python/py_worker.h"

namespace recon {
namespace {

nb::ndarray<nb::numpy, uint32_t, nb::ndim<1>> Order(uint64_t size, uint64_t seed, uint32_t data_epoch) {
  auto* order = new std::vector<uint32_t>(ShuffledOrder(size, seed, data_epoch));
  nb::capsule owner(order, [](void* kept) noexcept { delete static_cast<std::vector<uint32_t>*>(kept); });
  const size_t shape[] = {order->size()};
  return nb::ndarray<nb::numpy, uint32_t, nb::ndim<1>>(order->data(), 1, shape, owner);
}

}  // namespace
}  // namespace recon

NB_MODULE(_core, module) {
  using recon::PyWorker;
  recon::ProcessUptime();
  // What a script holds when it ends, a job say, is nobody's leak.
  nb::set_leak_warnings(false);
  module.attr("version") = std::string(recon::Version());
  // Made here, so that they are there whichever part of the package is imported first.
  recon::recon_error = PyErr_NewException("recon.ReconError", PyExc_RuntimeError, nullptr);
  recon::refused_error = PyErr_NewException("recon.Refused", recon::recon_error, nullptr);
  recon::lost_error = PyErr_NewException("recon.JobLost", recon::recon_error, nullptr);
  module.attr("ReconError") = nb::handle(recon::recon_error);
  module.attr("Refused") = nb::handle(recon::refused_error);
  module.attr("JobLost") = nb::handle(recon::lost_error);
  recon::DefineCollectives(module);
  module.def("memory_limit", [] { return recon::MemoryLimit(); });
  module.def("order", &recon::Order, nb::arg("size"), nb::arg("seed"), nb::arg("data_epoch"));
  nb::class_<PyWorker>(module, "Worker")
      .def(nb::init<const recon::Settings&, const std::string&, const std::vector<recon::TensorTuple>&,
                    const recon::Settings&, uint64_t, uint64_t, const recon::Settings&, const std::string&>(),
           nb::arg("settings"), nb::arg("model"), nb::arg("tensors"), nb::arg("aliases"),
           nb::arg("train_samples"), nb::arg("test_samples"), nb::arg("proposed"),
           nb::arg("data_fingerprint") = "")
      .def("placement", &PyWorker::Placement)
      .def_prop_ro("size", &PyWorker::size)
      .def_prop_ro("groups", &PyWorker::groups)
      .def_prop_ro("name", &PyWorker::name)
      .def("job", &PyWorker::Job)
      .def("next_work", &PyWorker::NextWork)
      .def("send_initial_values", &PyWorker::SendInitialValues, nb::arg("values"))
      .def("open_split", &PyWorker::OpenSplit, nb::arg("lease"), nb::arg("number"))
      .def("close_split", &PyWorker::CloseSplit, nb::arg("split"))
      .def("forget_lease", &PyWorker::ForgetLease, nb::arg("lease"))
      .def("lease_lost", &PyWorker::LeaseLost, nb::arg("lease"))
      .def("begin", &PyWorker::Begin, nb::arg("order_key"), nb::arg("split"))
      .def_prop_ro("begun", &PyWorker::begun)
      .def_prop_ro("revision", &PyWorker::revision)
      .def("parameters", [](nb::handle self) { return nb::cast<PyWorker&>(self).Parameters(self); })
      .def("gradient", [](nb::handle self) { return nb::cast<PyWorker&>(self).Gradient(self); })
      .def("end", &PyWorker::End, nb::arg("samples"), nb::arg("seconds"), nb::arg("loss").none(),
           nb::arg("learning_rates"), nb::arg("moved") = false, nb::arg("weight") = 0)
      .def("settle", &PyWorker::Settle)
      .def("push_as_it_comes", &PyWorker::PushAsItComes, nb::arg("samples"), nb::arg("learning_rates"),
           nb::arg("weight") = 0)
      .def("filled", &PyWorker::Filled, nb::arg("offset"), nb::arg("size"))
      .def_prop_ro("step", &PyWorker::step)
      .def("drop", &PyWorker::Drop)
      .def("await_mean", &PyWorker::AwaitMean, nb::arg("step"))
      .def("pull_mean", &PyWorker::PullMean, nb::arg("step"))
      .def("mean", [](nb::handle self) { return nb::cast<PyWorker&>(self).Mean(self); })
      .def_prop_ro("mean_pushes", [](PyWorker& self) { return self.mean_pushes(); })
      .def("report_state", &PyWorker::ReportState, nb::arg("next").none(), nb::arg("waits_for").none(),
           nb::arg("uncovered") = false, nb::arg("failed") = 0, nb::arg("line") = 0, nb::arg("at") = 0,
           nb::arg("through") = 0, nb::arg("asks_end") = false)
      .def("state", &PyWorker::State)
      .def("send_state", &PyWorker::SendState, nb::arg("values"), nb::arg("step"), nb::arg("upload"))
      .def("state_whole", &PyWorker::StateWhole)
      .def("next_step_from", &PyWorker::NextStepFrom, nb::arg("step"))
      .def("pull", &PyWorker::Pull)
      .def("begin_evaluation", &PyWorker::BeginEvaluation)
      .def("end_evaluation", &PyWorker::EndEvaluation, nb::arg("lease"), nb::arg("metrics"))
      .def("abandon", &PyWorker::Abandon, nb::arg("lease"))
      .def("pause", &PyWorker::Pause)
      .def("resume", &PyWorker::Resume)
      .def("leave", &PyWorker::Leave, nb::arg("finished"))
      .def("close", &PyWorker::Close, nb::arg("why"));
}
