#include "bindings/nccl/library.h"

#include <dlfcn.h>
#include <glob.h>
#include <link.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string_view>

#include "base/text.h"

// Says "this is the shim", to another copy of it.
extern "C" __attribute__((visibility("default"))) const int braid_nccl_is_shim = 1;

namespace braid::nccl {

namespace {

constexpr const char* kFile = "libnccl.so.2";
constexpr const char* kInPackages = "nvidia/nccl/lib/libnccl.so.2";

using Paths = std::vector<std::string>;

std::string folder_of(const std::string& path) {
  const size_t slash = path.rfind('/');
  return slash == std::string::npos ? "" : path.substr(0, slash);
}

std::string_view file_of(std::string_view path) { return path.substr(path.rfind('/') + 1); }

Paths loaded_objects() {
  Paths paths;
  dl_iterate_phdr(
      [](dl_phdr_info* object, size_t, void* found) {
        if (object->dlpi_name[0] == '/') static_cast<Paths*>(found)->push_back(object->dlpi_name);
        return 0;
      },
      &paths);
  return paths;
}

// Where we were put in place of the wheel's file, that one may lie beside us.
void add_moved_aside(Paths& paths) {
  Dl_info us{};
  if (dladdr(&braid_nccl_is_shim, &us) == 0 || us.dli_fname == nullptr) return;
  char resolved[4096];
  if (realpath(us.dli_fname, resolved) == nullptr) return;
  paths.push_back(folder_of(us.dli_fname) + "/" + kFile + ".real");
  paths.push_back(folder_of(resolved) + "/" + kFile + ".real");
}

void add_loaded(const Paths& objects, Paths& paths) {
  for (const std::string& object : objects)
    if (file_of(object).starts_with("libnccl.so")) paths.push_back(object);
}

// Whatever Python package is loaded tells where packages are: torch/lib/libtorch_cuda.so and
// nvidia/nccl/lib/libnccl.so.2 share a folder.
void add_packages(const Paths& objects, Paths& paths) {
  for (const std::string& object : objects)
    for (const std::string_view folder : {"/site-packages/", "/dist-packages/"}) {
      const size_t at = object.find(folder);
      if (at != std::string::npos)
        paths.push_back(object.substr(0, at + folder.size()) + kInPackages);
    }
}

void add_matches(const std::string& pattern, Paths& paths) {
  glob_t found{};
  // NOLINTNEXTLINE(concurrency-mt-unsafe): it is for GLOB_TILDE, which asks who the user is
  if (glob(pattern.c_str(), GLOB_NOSORT, nullptr, &found) == 0)
    for (size_t i = 0; i < found.gl_pathc; ++i) paths.emplace_back(found.gl_pathv[i]);
  globfree(&found);
}

// Before any package is loaded: the environment that is active, or the one of this program.
void add_environments(Paths& paths) {
  Paths roots;
  for (const char* name : {"VIRTUAL_ENV", "CONDA_PREFIX"})
    if (const char* root = secure_getenv(name)) roots.emplace_back(root);  // NOLINT
  char program[4096];
  const ssize_t length = readlink("/proc/self/exe", program, sizeof program);
  if (length > 0 && length < static_cast<ssize_t>(sizeof program))
    roots.push_back(folder_of(folder_of(std::string(program, static_cast<size_t>(length)))));
  for (const std::string& root : roots)
    for (const char* packages : {"/lib/python3*/site-packages/", "/lib/python3*/dist-packages/"})
      add_matches(root + packages + kInPackages, paths);
}

std::string contents(const char* path) {
  const std::unique_ptr<FILE, int (*)(FILE*)> file(std::fopen(path, "rbe"), std::fclose);
  std::string text;
  char block[65536];
  while (file && std::feof(file.get()) == 0 && std::ferror(file.get()) == 0)
    text.append(block, std::fread(block, 1, sizeof block, file.get()));
  return text;
}

void add_loader_paths(Paths& paths) {
  if (const char* folders = secure_getenv("LD_LIBRARY_PATH"))  // NOLINT(concurrency-mt-unsafe)
    for (const std::string_view folder : split(folders, ':'))
      if (folder.starts_with('/')) paths.push_back(std::string(folder) + "/" + kFile);
  for (std::string& path : paths_in_loader_cache(contents("/etc/ld.so.cache")))
    paths.push_back(std::move(path));
  for (const char* folder : {"/usr/local/lib/", "/usr/lib/x86_64-linux-gnu/", "/usr/lib64/"})
    paths.push_back(std::string(folder) + kFile);
}

/// Null, and `why` grows, when there is nothing of use at `path`.
void* open_at(const std::string& path, std::string& why) {
  const auto note = [&](const char* text) {
    why += fmt::format("{}{}: {}", why.empty() ? "" : "; ", path, text);
    return nullptr;
  };
  void* handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) return note(dlerror());  // NOLINT(concurrency-mt-unsafe)
  if (dlsym(handle, "braid_nccl_is_shim") != nullptr) {
    dlclose(handle);
    return note("this is braid's own library");
  }
  if (dlsym(handle, "ncclGetVersion") == nullptr) {
    dlclose(handle);
    return note("there is no ncclGetVersion in it");
  }
  return handle;
}

}  // namespace

// The cache holds plain strings; what its tables say about them is not needed to find one.
Paths paths_in_loader_cache(std::string_view cache) {
  Paths paths;
  const std::string wanted = std::string("/") + kFile + '\0';
  for (size_t at = cache.find(wanted); at != std::string_view::npos;
       at = cache.find(wanted, at + 1)) {
    size_t begin = at;
    while (begin > 0 && cache[begin - 1] != '\0') --begin;
    if (cache[begin] == '/')
      paths.emplace_back(cache.substr(begin, at + wanted.size() - 1 - begin));
  }
  return paths;
}

Paths likely_paths() {
  Paths paths;
  const Paths objects = loaded_objects();
  add_moved_aside(paths);
  add_loaded(objects, paths);
  add_packages(objects, paths);
  add_environments(paths);
  add_loader_paths(paths);
  return paths;
}

Result<Library> Library::open(const std::string& named) {
  std::string why;
  if (!named.empty()) {
    if (named[0] != '/')
      return invalid_argument("BRAID_NCCL_REAL='{}': asked for an absolute path", named);
    if (void* handle = open_at(named, why)) return Library(handle, named);
    return unavailable("BRAID_NCCL_REAL: {}", why);
  }
  for (const std::string& path : likely_paths()) {
    if (access(path.c_str(), R_OK) != 0) continue;
    if (void* handle = open_at(path, why)) return Library(handle, path);
  }
  return unavailable("no NCCL was found beside braid's; set BRAID_NCCL_REAL to its path{}{}",
                     why.empty() ? "" : "; tried ", why);
}

void* Library::find(const char* symbol) const { return dlsym(handle_, symbol); }

}  // namespace braid::nccl
