// Engines of a fake GPU for tests, with what their kernels do done by the processor.
#pragma once

#include <atomic>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/copy_pages.h"
#include "engine/engine.h"
#include "engines.h"
#include "sys/cuda/fake.h"

namespace braid::engine::test {

/// What braid_copy_pages does, by the processor.
inline Status copy_pages(const sys::LaunchShape& shape, std::span<void*> arguments) {
  const auto* list = reinterpret_cast<const PageCopy*>(*static_cast<uint64_t*>(arguments[0]));
  const uint32_t count = *static_cast<uint32_t*>(arguments[1]);
  EXPECT_EQ(shape.num_threads, kCopyThreads);
  for (uint32_t i = 0; i < count; ++i)
    std::memcpy(reinterpret_cast<void*>(list[i].to), reinterpret_cast<const void*>(list[i].from),
                list[i].bytes);
  return {};
}

/// And braid_copy_page_list.
inline std::atomic<uint64_t> page_lists = 0;  // launches
inline Status copy_page_list(const sys::LaunchShape& shape, std::span<void*> arguments) {
  const PageJob job = *static_cast<PageJob*>(arguments[0]);
  EXPECT_EQ(shape.num_threads, kPageThreads);
  EXPECT_EQ(shape.num_blocks, job.blocks_each * job.num_planes);
  ++page_lists;
  const auto* entries = reinterpret_cast<const PageEntry*>(job.list);
  for (uint32_t i = 0; i < job.count; ++i) {
    const PageEntry entry = job.list == 0 ? PageEntry() : entries[i];
    const auto number = [&](PageKey key) {
      return key == PageKey::kSource   ? entry.source
             : key == PageKey::kTarget ? entry.target
                                       : job.first_place + i;
    };
    const uint64_t from = number(job.from_key), to = number(job.to_key);
    if (from > job.from_most || to > job.to_most) {
      *reinterpret_cast<uint32_t*>(job.trouble) = 1;
      continue;
    }
    for (const PlaneEnds& ends : std::span(job.planes, job.num_planes))
      std::memcpy(reinterpret_cast<void*>(ends.to + to * job.to_stride),
                  reinterpret_cast<const void*>(ends.from + from * job.from_stride),
                  job.page_bytes);
  }
  return {};
}

/// And braid_fetch_list.
inline std::atomic<uint64_t> fetched = 0;  // entries
inline Status fetch_list(const sys::LaunchShape& shape, std::span<void*> arguments) {
  EXPECT_EQ(shape.num_threads, kFetchThreads);
  const auto word = [&](size_t i) { return *static_cast<uint64_t*>(arguments[i]); };
  const uint32_t count = *static_cast<uint32_t*>(arguments[2]);
  EXPECT_LE(count, kMostFetched);
  std::memcpy(reinterpret_cast<void*>(word(0)), reinterpret_cast<const void*>(word(1)),
              count * sizeof(PageEntry));
  fetched += count;
  return {};
}

/// Memory of it, registered.
struct OnGpu {
  OnGpu(sys::FakeCuda& cuda, Engine& engine, size_t size, uint32_t salt) : bytes(size) {
    address = cuda.alloc(size).value();
    const auto content = pattern(size, salt);
    std::memcpy(memory(), content.data(), size);
    auto made = engine.register_gpu_memory(address, size);
    EXPECT_TRUE(is_ok(made));
    region = made.value();
    descriptor = engine.descriptor(*region).value();
  }
  std::byte* memory() const { return reinterpret_cast<std::byte*>(address); }
  std::vector<std::byte> content() const { return {memory(), memory() + bytes}; }
  sys::DevicePtr address = 0;
  size_t bytes;
  std::shared_ptr<Region> region;
  std::string descriptor;
};
inline RemoteRegion import_from(Engine& engine, const std::string& descriptor) {
  return engine.import(descriptor).value();
}

/// Two engines of one fake GPU. `Cuda`: a FakeCuda, or one that does more.
template <typename Cuda>
class OfOneGpu : public testing::Test {
 protected:
  OfOneGpu() {
    cuda.define_kernel("braid_copy_pages", copy_pages);
    cuda.define_kernel("braid_copy_page_list", copy_page_list);
    cuda.define_kernel("braid_fetch_list", fetch_list);
    fetched = page_lists = 0;
    EXPECT_TRUE(is_ok(cuda.use_device(0)));
    a = make("a");
    b = make("b");
  }
  std::unique_ptr<Engine> make(const std::string& name, int device = 0) {
    EngineOptions options = Engines(Way{"local", true, "", 0, {}}).options(name);
    options.cuda = &cuda;
    options.device = device;
    return Engines::make(options);
  }

  Cuda cuda;
  std::unique_ptr<Engine> a, b;
};

}  // namespace braid::engine::test
