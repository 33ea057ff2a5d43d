// A pretended CUDA device for a torch without CUDA: its tensors' memory is the host's and their operators are the CPU's,
// but they are on "cuda:0": they don't mix with tensors or generators of the CPU, and autocast, the autograd engine and
// every branch on the device take CUDA's way. It shows placement and number formats; not kernels, rounding or speed.
#include <ATen/EmptyTensor.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/_scaled_dot_product_attention_math.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/resize_native.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_native.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>

namespace {
using at::Tensor;
using c10::Device, c10::DeviceIndex, c10::DeviceType, c10::Stream;
const Device GPU(DeviceType::CUDA, 0);

struct Memory final : c10::Allocator {
  c10::DataPtr allocate(size_t bytes) override {
    void* memory = bytes ? std::malloc(bytes) : nullptr;
    return {memory, memory, &std::free, GPU};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &std::free; }
  void copy_data(void* to, const void* from, size_t bytes) const override { default_copy_data(to, from, bytes); }
} memory;

struct Guard final : c10::impl::DeviceGuardImplInterface {
  DeviceType type() const override { return DeviceType::CUDA; }
  Device exchangeDevice(Device) const override { return GPU; }
  Device getDevice() const override { return GPU; }
  void setDevice(Device) const override {}
  void uncheckedSetDevice(Device) const noexcept override {}
  Stream getStream(Device) const override { return Stream(Stream::DEFAULT, GPU); }
  Stream getNewStream(Device, int) const override { return Stream(Stream::DEFAULT, GPU); }
  Stream exchangeStream(Stream) const override { return Stream(Stream::DEFAULT, GPU); }
  DeviceIndex deviceCount() const noexcept override { return 1; }
  void record(void**, const Stream&, const DeviceIndex, const c10::EventFlag) const override {}
  void block(void*, const Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
  void destroyEvent(void*, const DeviceIndex) const noexcept override {}
};

struct Hooks final : at::CUDAHooksInterface {
  explicit Hooks(at::CUDAHooksArgs) {}
  void init() const override {}
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasCUDA() const override { return true; }
  bool hasPrimaryContext(DeviceIndex) const override { return true; }
  int getNumGPUs() const override { return 1; }
  DeviceIndex deviceCount() const override { return 1; }
  DeviceIndex current_device() const override { return 0; }
  DeviceIndex getCurrentDevice() const override { return 0; }
  bool isPinnedPtr(const void*) const override { return false; }
};

bool on_gpu(const Tensor& tensor) { return tensor.defined() && tensor.is_cuda(); }

// The same memory as a tensor of the CPU, which keeps the other one alive.
Tensor as_on(const Tensor& tensor, Device device) {
  const auto& storage = tensor.storage();
  auto* owner = new Tensor(tensor);
  c10::DataPtr data(storage.mutable_data(), owner, [](void* kept) { delete static_cast<Tensor*>(kept); }, device);
  c10::Allocator* allocator = device.is_cpu() ? c10::GetAllocator(DeviceType::CPU) : &memory;
  auto shared = c10::make_intrusive<c10::StorageImpl>(
      c10::StorageImpl::use_byte_size_t(), storage.nbytes(), std::move(data), allocator, /*resizable=*/true);
  auto key = device.is_cpu() ? c10::DispatchKey::CPU : c10::DispatchKey::CUDA;
  auto made = at::detail::make_tensor<c10::TensorImpl>(std::move(shared), c10::DispatchKeySet(key), tensor.dtype());
  made.unsafeGetTensorImpl()->set_sizes_and_strides(tensor.sizes(), tensor.strides(), tensor.storage_offset());
  if (tensor.is_conj()) made._set_conj(true);
  return made;
}

Tensor on_cpu(const Tensor& tensor) { return on_gpu(tensor) ? as_on(tensor, Device(DeviceType::CPU)) : tensor; }
Tensor to_gpu(const Tensor& tensor) { return tensor.defined() && !tensor.is_cuda() ? as_on(tensor, GPU) : tensor; }

// Every operator without a kernel of the pretended device: the CPU's, on the same memory.
void on_the_cpu(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const auto& schema = op.schema();
  const auto count = schema.arguments().size();
  const auto name = schema.name();
  const bool indices = name.rfind("aten::index", 0) == 0 || name.rfind("aten::_index_put", 0) == 0;
  const std::vector<c10::IValue> inputs(stack->end() - count, stack->end());
  std::vector<std::pair<Tensor, Tensor>> shared;  // (on the GPU, its alias on the CPU)
  bool some_gpu = false, some_cpu = false;
  const auto moved = [&](const Tensor& tensor) {
    if (!tensor.defined()) return tensor;
    some_gpu |= tensor.is_cuda();
    some_cpu |= !tensor.is_cuda() && tensor.dim() > 0;
    auto alias = on_cpu(tensor);
    if (tensor.is_cuda()) shared.emplace_back(tensor, alias);
    return alias;
  };
  for (size_t i = 0; i < count; ++i) {
    const auto& input = inputs[i];
    auto& slot = (*stack)[stack->size() - count + i];
    if (input.isTensor()) {
      slot = moved(input.toTensor());
    } else if (input.isTensorList()) {
      std::vector<Tensor> list;
      for (const Tensor& tensor : input.toTensorVector()) list.push_back(moved(tensor));
      slot = list;
    } else if (input.isOptionalTensorList()) {
      c10::List<std::optional<Tensor>> list;
      for (std::optional<Tensor> tensor : input.toOptionalTensorList())
        list.push_back(tensor && tensor->defined() && !tensor->is_cuda() ? tensor : tensor ? std::optional(moved(*tensor)) : tensor);
      slot = list;
    } else if (input.isDevice()) {
      some_gpu |= input.toDevice().is_cuda();
      slot = Device(DeviceType::CPU);
    } else if (input.isGenerator()) {
      TORCH_CHECK(false, "Expected a 'cuda' device type for generator but found 'cpu' (", name, ")");
    }
  }
  TORCH_CHECK(
      !(some_gpu && some_cpu) || indices, "Expected all tensors to be on the same device, but got cuda:0 and cpu in ", name);
  op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), stack);
  const auto returned = schema.returns().size();
  for (size_t i = 0; i < returned; ++i) {
    auto& slot = (*stack)[stack->size() - returned + i];
    const auto back = [&](const Tensor& tensor) {
      for (auto& [gpu, alias] : shared)
        if (tensor.is_same(alias)) {
          if (gpu.sizes() != alias.sizes() || gpu.strides() != alias.strides() || gpu.data_ptr() != alias.data_ptr()) {
            const auto made = to_gpu(alias);
            at::native::set_tensor_(const_cast<Tensor&>(gpu), made);
          }
          return gpu;
        }
      return to_gpu(tensor);
    };
    if (slot.isTensor()) {
      slot = back(slot.toTensor());
    } else if (slot.isTensorList()) {
      std::vector<Tensor> list;
      for (const Tensor& tensor : slot.toTensorVector()) list.push_back(back(tensor));
      slot = list;
    }
  }
}

Tensor& copy(Tensor& self, const Tensor& source, bool) {
  on_cpu(self).copy_(on_cpu(source));
  return self;
}

Tensor empty(
    c10::IntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<at::Layout>, std::optional<Device>,
    std::optional<bool>, std::optional<at::MemoryFormat> format) {
  return at::detail::empty_generic(
      size, &memory, c10::DispatchKeySet(c10::DispatchKey::CUDA), c10::dtype_or_default(dtype), format);
}

Tensor empty_strided(
    c10::IntArrayRef size, c10::IntArrayRef stride, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
    std::optional<Device>, std::optional<bool>) {
  return at::detail::empty_strided_generic(
      size, stride, &memory, c10::DispatchKeySet(c10::DispatchKey::CUDA), c10::dtype_or_default(dtype));
}

// CPUs have no such product.
Tensor bmm_dtype(const Tensor& left, const Tensor& right, at::ScalarType dtype) {
  return at::bmm(left.to(at::kFloat), right.to(at::kFloat)).to(dtype);
}

Tensor attention(
    const Tensor& q, const Tensor& k, const Tensor& v, const std::optional<Tensor>& mask, double dropout, bool causal,
    std::optional<double> scale, bool grouped) {
  auto added = mask;
  if (mask && mask->scalar_type() == at::kBool)
    added = at::zeros_like(*mask, q.options()).masked_fill(mask->logical_not(), -std::numeric_limits<double>::infinity());
  return std::get<0>(at::_scaled_dot_product_attention_math(q, k, v, added, dropout, causal, std::nullopt, scale, grouped));
}

TORCH_LIBRARY_IMPL(_, CUDA, library) { library.fallback(torch::CppFunction::makeFromBoxedFunction<&on_the_cpu>()); }

TORCH_LIBRARY_IMPL(aten, CUDA, library) {
  library.impl("empty.memory_format", empty);
  library.impl("empty_strided", empty_strided);
  library.impl("copy_", copy);
  library.impl("bmm.dtype", bmm_dtype);
  library.impl("scaled_dot_product_attention", attention);
  library.impl("as_strided", at::native::as_strided_tensorimpl);
  library.impl("view", static_cast<Tensor (*)(const Tensor&, c10::IntArrayRef)>(at::native::view));
  library.impl("_reshape_alias", at::native::_reshape_alias);
  library.impl("unfold", at::native::unfold);
  library.impl("set_.source_Tensor", at::native::set_tensor_);
  library.impl("set_.source_Storage_storage_offset", at::native::set_storage_cpu_);
  library.impl("resize_", static_cast<const Tensor& (*)(const Tensor&, c10::IntArrayRef, std::optional<at::MemoryFormat>)>(at::native::resize_));
}

TORCH_LIBRARY_IMPL(aten, AutogradCUDA, library) { library.impl("scaled_dot_product_attention", attention); }

const bool registered = (c10::SetAllocator(DeviceType::CUDA, &memory), true);
}  // namespace

C10_REGISTER_GUARD_IMPL(CUDA, Guard)

namespace at {
C10_REGISTER_CLASS(CUDAHooksRegistry, CUDAHooks, Hooks)
}
