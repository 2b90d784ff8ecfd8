// Stands in for CUDA's kernels: every aten operator that has one runs its CPU kernel instead, on the
// same memory, which is the host's. So eager code computes what it would on a CPU.
//
// A boxed kernel wraps each CUDA tensor of the arguments as a CPU tensor over the same bytes, calls
// the operator, and wraps back what it returns.
#include <ATen/ATen.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include <set>

using at::Tensor;

static Tensor on_cpu(const Tensor& tensor) {
  auto options = tensor.options().device(at::kCPU).requires_grad(false);
  if (!tensor.numel()) return at::empty_strided(tensor.sizes(), tensor.strides(), options);
  auto bytes = tensor.data_ptr();
  auto seen = at::from_blob(bytes, tensor.sizes(), tensor.strides(), [](void*) {}, options);
  if (tensor.is_conj()) seen._set_conj(true);
  if (tensor.is_neg()) seen._set_neg(true);
  bool scalar = tensor.unsafeGetTensorImpl()->is_wrapped_number();
  if (scalar) seen.unsafeGetTensorImpl()->set_wrapped_number(true);
  return seen;
}

struct Call {  // one operator's: which CPU tensor stands for which of the device's
  std::vector<std::pair<Tensor, Tensor>> pairs;
  c10::Device device{at::kCUDA, 0};

  Tensor there(const Tensor& tensor) {
    if (!tensor.defined() || !tensor.is_cuda()) return tensor;
    device = tensor.device();
    for (auto& [own, cpu] : pairs)
      if (own.is_same(tensor)) return cpu;
    if (!tensor.has_storage() || tensor.layout() != at::kStrided) return tensor;
    pairs.emplace_back(tensor, on_cpu(tensor));
    return pairs.back().second;
  }
  Tensor back(const Tensor& result) {
    if (!result.defined() || !result.device().is_cpu()) return result;
    for (auto& [own, cpu] : pairs)
      if (cpu.is_same(result)) {  // written in place; where it was resized its bytes have moved
        bool moved = own.sizes() != result.sizes();
        if (moved || (result.numel() && own.data_ptr() != result.data_ptr())) {
          own.resize_(result.sizes());
          on_cpu(own).copy_(result);
        }
        return own;
      }
    auto options = result.options().device(device);
    auto made = at::empty_strided(result.sizes(), result.strides(), options);
    if (result.numel()) on_cpu(made).copy_(result);
    bool scalar = result.unsafeGetTensorImpl()->is_wrapped_number();
    if (scalar) made.unsafeGetTensorImpl()->set_wrapped_number(true);
    return made;
  }
  c10::IValue argument(const c10::IValue& value) {
    if (value.isDevice() && value.toDevice().is_cuda()) {
      device = value.toDevice();
      return c10::Device(at::kCPU);
    }
    if (value.isGenerator()) return {};  // the CPU's own
    return each(value, [this](const Tensor& tensor) { return there(tensor); });
  }
  c10::IValue result(const c10::IValue& value) {
    return each(value, [this](const Tensor& tensor) { return back(tensor); });
  }
  template <class Convert>
  static c10::IValue each(const c10::IValue& value, Convert convert) {
    if (value.isTensor()) return convert(value.toTensor());
    if (value.isOptionalTensorList()) {
      c10::List<std::optional<Tensor>> list;
      for (auto& tensor : value.toOptionalTensorVector())
        list.push_back(tensor ? std::optional(convert(*tensor)) : tensor);
      return list;
    }
    if (value.isTensorList() || (value.isList() && !value.toListRef().empty() &&
                                 value.toListRef()[0].isTensor())) {
      c10::List<Tensor> list;
      for (auto& tensor : value.toListRef()) list.push_back(convert(tensor.toTensor()));
      return list;
    }
    return value;
  }
};

static void run_on_cpu(const c10::OperatorHandle& op, c10::DispatchKeySet,
                       torch::jit::Stack* stack) {
  Call call;
  auto replace = [stack](size_t number, auto convert) {
    auto values = torch::jit::last(*stack, number).vec();
    torch::jit::drop(*stack, number);
    for (auto& value : values) stack->push_back(convert(value));
  };
  replace(op.schema().arguments().size(), [&](auto& value) { return call.argument(value); });
  {
    at::AutoDispatchBelowADInplaceOrView below;
    op.callBoxed(stack);
  }
  replace(op.schema().returns().size(), [&](auto& value) { return call.result(value); });
}

// A stream's order is that of the calls, so a copy may happen at once. The driver still counts it.
static Tensor& copy(Tensor& self, const Tensor& source, bool) {
  if (self.is_same(source)) return self;
  at::AutoDispatchBelowADInplaceOrView below;
  Tensor to = self.is_cuda() ? on_cpu(self) : self;
  to.copy_(source.is_cuda() ? on_cpu(source) : source);
  return self;
}

// Those that allocate, view, or ask something of the device keep their CUDA kernels. So does fused
// attention, which computes nothing.
static bool keeps_its_own(const std::string& name) {
  static const std::set<std::string> OWN = {
      "empty", "empty_strided", "resize_", "set_", "view", "as_strided", "unfold", "alias",
      "_reshape_alias", "squeeze", "unsqueeze", "view_as_real", "view_as_complex", "copy_",
      "_to_copy", "_local_scalar_dense", "record_stream", "_pin_memory", "is_pinned", "is_set_to",
      "_resize_output_", "_efficientzerotensor", "view_copy", "_fused_sdp_choice"};
  if (OWN.count(name)) return true;
  for (auto part : {"cudnn", "miopen", "nested", "sparse", "quant", "_attention"})
    if (name.find(part) != std::string::npos) return true;
  return false;
}

extern "C" __attribute__((visibility("default"))) int install() {
  using c10::DispatchKey;
  static torch::Library library(torch::Library::IMPL, "aten", DispatchKey::CUDA, __FILE__, __LINE__);
  auto& dispatcher = c10::Dispatcher::singleton();
  int installed = 0;
  for (auto& name : dispatcher.getAllOpNames()) {
    if (name.name.rfind("aten::", 0) || keeps_its_own(name.name.substr(6))) continue;
    auto op = dispatcher.findOp(name);
    if (!op || !op->hasKernelForDispatchKey(DispatchKey::CUDA)) continue;
    bool cpu = false;
    for (auto key : {DispatchKey::CPU, DispatchKey::CompositeExplicitAutograd,
                     DispatchKey::CompositeExplicitAutogradNonFunctional})
      cpu = cpu || op->hasKernelForDispatchKey(key);
    if (!cpu) continue;
    auto full = name.name + (name.overload_name.empty() ? "" : "." + name.overload_name);
    library.impl(full.c_str(), torch::CppFunction::makeFromBoxedFunction<&run_on_cpu>());
    installed++;
  }
  library.impl("copy_", torch::CppFunction::makeFromUnboxedFunction(&copy));
  return installed;
}
