// The prototypes below are the project's own reading of NVML's stable C interface (nvml.h of CUDA
// 12 and 13): the library is looked up by name at run time, so that one binary runs with and
// without a driver.
#include <dlfcn.h>

#include "sys/nvml/api.h"
#include "sys/sysfs/api.h"

namespace braid::sys {

namespace {

using Device = void*;  // nvmlDevice_t
constexpr int kSuccess = 0;
constexpr unsigned kMaxNvlinks = 18;  // NVML_NVLINK_MAX_LINKS

struct PciInfo {  // nvmlPciInfo_t, version 3
  char bus_id_legacy[16];
  unsigned domain, bus, device, pci_device_id, pci_subsystem_id;
  char bus_id[32];
};
struct Memory {  // nvmlMemory_t
  unsigned long long total, free, used;
};
struct FieldValue {  // nvmlFieldValue_t
  unsigned field_id, scope_id;
  long long timestamp, latency_us;
  int value_type;
  int rc;
  union {
    double d;
    unsigned ui;
    unsigned long ul;
    unsigned long long ull;
    long long sll;
    int si;
    unsigned short us;
  } value;
};
// NVML_FI_DEV_NVLINK_SPEED_MBPS_COMMON: of one link, MB/s and direction.
constexpr unsigned kFieldNvlinkSpeedMbps = 90;

struct Functions {
  int (*init)() = nullptr;
  const char* (*error_string)(int) = nullptr;
  int (*driver_version)(char*, unsigned) = nullptr;
  int (*count)(unsigned*) = nullptr;
  int (*handle)(unsigned, Device*) = nullptr;
  int (*name)(Device, char*, unsigned) = nullptr;
  int (*pci)(Device, PciInfo*) = nullptr;
  int (*memory)(Device, Memory*) = nullptr;
  int (*nvlink_state)(Device, unsigned, unsigned*) = nullptr;
  int (*field_values)(Device, int, FieldValue*) = nullptr;
  int (*pcie_gen)(Device, unsigned*) = nullptr;
  int (*pcie_width)(Device, unsigned*) = nullptr;
};

template <typename F>
void look_up(void* library, const char* name, F& function) {
  function = reinterpret_cast<F>(::dlsym(library, name));
}

// "00000000:1B:00.0" is NVML's, "0000:1b:00.0" is sysfs's.
std::string sysfs_address(const PciInfo& pci) {
  return fmt::format("{:04x}:{:02x}:{:02x}.0", pci.domain, pci.bus, pci.device);
}

class RealNvml : public Nvml {
 public:
  RealNvml() { status_ = open(); }

  Result<std::vector<GpuFacts>> gpus() override {
    BRAID_RETURN_IF_ERROR(status_);
    unsigned count = 0;
    if (const int rc = nvml_.count(&count); rc != kSuccess)
      return failed("nvmlDeviceGetCount_v2", rc);
    std::vector<GpuFacts> all;
    for (unsigned i = 0; i < count; ++i) {
      BRAID_ASSIGN_OR_RETURN(GpuFacts gpu, facts_of(i));
      all.push_back(std::move(gpu));
    }
    return all;
  }

  std::string driver_version() override {
    char text[80] = "";
    if (!status_.ok() || nvml_.driver_version(text, sizeof text) != kSuccess) return "";
    return text;
  }

 private:
  // The library stays open and initialised for the life of the process: NVML's shutdown races with
  // other users of it in the same process.
  Status open() {
    void* library = ::dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    // NOLINTNEXTLINE(concurrency-mt-unsafe): glibc keeps the text per thread
    if (library == nullptr) return unavailable("nvml: {}", ::dlerror());
    look_up(library, "nvmlInit_v2", nvml_.init);
    look_up(library, "nvmlErrorString", nvml_.error_string);
    look_up(library, "nvmlSystemGetDriverVersion", nvml_.driver_version);
    look_up(library, "nvmlDeviceGetCount_v2", nvml_.count);
    look_up(library, "nvmlDeviceGetHandleByIndex_v2", nvml_.handle);
    look_up(library, "nvmlDeviceGetName", nvml_.name);
    look_up(library, "nvmlDeviceGetPciInfo_v3", nvml_.pci);
    look_up(library, "nvmlDeviceGetMemoryInfo", nvml_.memory);
    look_up(library, "nvmlDeviceGetNvLinkState", nvml_.nvlink_state);
    look_up(library, "nvmlDeviceGetFieldValues", nvml_.field_values);
    look_up(library, "nvmlDeviceGetMaxPcieLinkGeneration", nvml_.pcie_gen);
    look_up(library, "nvmlDeviceGetMaxPcieLinkWidth", nvml_.pcie_width);
    const Functions& f = nvml_;
    const bool is_complete = f.init && f.error_string && f.driver_version && f.count && f.handle &&
                             f.name && f.pci && f.memory && f.nvlink_state && f.field_values &&
                             f.pcie_gen && f.pcie_width;
    if (!is_complete) return unavailable("nvml: libnvidia-ml.so.1 lacks a function of NVML 12");
    if (const int rc = nvml_.init(); rc != kSuccess)
      return unavailable("nvml: nvmlInit_v2: {} ({})", nvml_.error_string(rc), rc);
    return {};
  }

  Status failed(const char* call, int rc) const {
    return driver_error("nvml: {}: {} ({})", call, nvml_.error_string(rc), rc);
  }

  Result<GpuFacts> facts_of(unsigned index) const {
    Device device = nullptr;
    if (const int rc = nvml_.handle(index, &device); rc != kSuccess)
      return failed("nvmlDeviceGetHandleByIndex_v2", rc);
    char name[96] = "";
    PciInfo pci{};
    Memory memory{};
    if (const int rc = nvml_.name(device, name, sizeof name); rc != kSuccess)
      return failed("nvmlDeviceGetName", rc);
    if (const int rc = nvml_.pci(device, &pci); rc != kSuccess)
      return failed("nvmlDeviceGetPciInfo_v3", rc);
    if (const int rc = nvml_.memory(device, &memory); rc != kSuccess)
      return failed("nvmlDeviceGetMemoryInfo", rc);
    GpuFacts gpu;
    gpu.name = name;
    gpu.pci_address = sysfs_address(pci);
    gpu.memory_bytes = memory.total;
    gpu.numa_node = static_cast<int>(
        real_sysfs().read_integer("/sys/bus/pci/devices/" + gpu.pci_address + "/numa_node", -1));
    gpu.num_nvlinks = count_nvlinks(device);
    gpu.nvlink_gbps_per_link = gpu.num_nvlinks > 0 ? nvlink_gbps(device) : 0;
    gpu.pcie_gen = number(nvml_.pcie_gen, device);
    gpu.pcie_width = number(nvml_.pcie_width, device);
    return gpu;
  }

  static int number(int (*call)(Device, unsigned*), Device device) {
    unsigned value = 0;
    return call(device, &value) == kSuccess ? static_cast<int>(value) : 0;
  }

  int count_nvlinks(Device device) const {
    int up = 0;
    for (unsigned link = 0; link < kMaxNvlinks; ++link) {
      unsigned is_active = 0;
      if (nvml_.nvlink_state(device, link, &is_active) == kSuccess && is_active == 1) ++up;
    }
    return up;
  }

  double nvlink_gbps(Device device) const {
    FieldValue field{};
    field.field_id = kFieldNvlinkSpeedMbps;
    if (nvml_.field_values(device, 1, &field) != kSuccess || field.rc != kSuccess) return 0;
    return field.value.ui / 1000.0;
  }

  Functions nvml_;
  Status status_;
};

}  // namespace

Nvml& real_nvml() {
  static RealNvml real;
  return real;
}

}  // namespace braid::sys
