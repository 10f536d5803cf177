// A GPU server that exists only in memory: 2 sockets of 48 cores, `num_gpus` H200-like GPUs, and a
// 400 Gb/s NIC for every two of them behind the same PCIe switch, as such machines are built.
#pragma once

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>

#include <string>

#include "fabric/discover.h"
#include "sys/nvml/fake.h"
#include "sys/sysfs/fake.h"

namespace braid::test {

inline sys::Endpoint ipv4(const std::string& text) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  inet_pton(AF_INET, text.c_str(), &address.sin_addr);
  return {reinterpret_cast<const sockaddr*>(&address), sizeof(address)};
}

class FakeMachine {
 public:
  explicit FakeMachine(int num_gpus = 8)
      : nvml(sys::FakeNvml::two_sockets(num_gpus)), num_gpus_(num_gpus) {
    add_cpus();
    for (int gpu = 0; gpu < num_gpus; ++gpu) add_gpu(gpu);
    for (int nic = 0; nic < num_gpus / 2; ++nic) add_nic(nic);
    interfaces.push_back({"lo", ipv4("127.0.0.1"), true});
  }

  fabric::World world(const std::string& host_id = "host-a") {
    return {sysfs, nvml, interfaces, host_id, "server-" + host_id};
  }
  fabric::Node node(const std::string& host_id = "host-a") {
    return fabric::discover(world(host_id)).node;
  }

  void set_nic_down(int nic) {
    sysfs.write(fmt::format("{}/ports/1/state", nic_base(nic)), "1: DOWN");
  }

  sys::FakeSysfs sysfs;
  sys::FakeNvml nvml;
  std::vector<sys::Interface> interfaces;

 private:
  int socket_of(int gpu) const { return gpu < (num_gpus_ + 1) / 2 ? 0 : 1; }
  // Two GPUs and a NIC below one switch: root port, upstream port, a downstream port each.
  std::string below_switch(int pair, int port) const {
    const int socket = socket_of(2 * pair);
    return fmt::format(
        "/sys/devices/pci0000:{0:02x}/0000:{0:02x}:{1:02x}.0/0000:{2:02x}:00.0/"
        "0000:{3:02x}:{4:02x}.0",
        socket * 0x80, pair + 1, 0x0a + pair, 0x90 + pair, port);
  }
  static std::string nic_base(int nic) { return fmt::format("/sys/class/infiniband/mlx5_{}", nic); }

  void add_cpus() {
    for (int cpu = 0; cpu < 192; ++cpu) {  // two hardware threads a core
      const std::string topology = fmt::format("/sys/devices/system/cpu/cpu{}/topology", cpu);
      sysfs.write(topology + "/physical_package_id", fmt::format("{}", cpu / 48 % 2));
      sysfs.write(topology + "/core_id", fmt::format("{}", cpu % 48));
    }
    for (int node = 0; node < 2; ++node) {
      const std::string base = fmt::format("/sys/devices/system/node/node{}", node);
      sysfs.write(base + "/cpulist", node == 0 ? "0-47,96-143" : "48-95,144-191");
      sysfs.write(
          base + "/meminfo",
          fmt::format("Node {} MemTotal:       1056784384 kB\nNode {} MemFree: 1 kB", node, node));
    }
  }
  void add_gpu(int gpu) {
    const std::string address =
        fmt::format("0000:{:02x}:00.0", 0x10 + 0x10 * gpu);  // as FakeNvml has them
    const std::string path = below_switch(gpu / 2, gpu % 2) + "/" + address;
    sysfs.write(path + "/numa_node", fmt::format("{}", socket_of(gpu)));
    sysfs.link("/sys/bus/pci/devices/" + address, path);
  }
  void add_nic(int nic) {
    const std::string address = fmt::format("0000:{:02x}:00.0", 0xe0 + nic);
    const std::string path = below_switch(nic, 2) + "/" + address;
    const std::string interface = fmt::format("eth{}", nic);
    sysfs.write(path + "/numa_node", fmt::format("{}", socket_of(2 * nic)));
    sysfs.write(path + "/net/" + interface + "/speed", "400000");
    sysfs.write(fmt::format("{}/ports/1/state", nic_base(nic)), "4: ACTIVE");
    sysfs.write(fmt::format("{}/ports/1/rate", nic_base(nic)), "400 Gb/sec (4X NDR)");
    sysfs.link("/sys/bus/pci/devices/" + address, path);
    sysfs.link(nic_base(nic) + "/device", path);
    interfaces.push_back({interface, ipv4(fmt::format("10.0.{}.1", nic)), false});
  }

  int num_gpus_;
};

}  // namespace braid::test
