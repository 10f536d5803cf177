// The same calls of every rank as graphs, one a rank, which one host thread launches rank by rank.
#pragma once

#include <vector>

#include "device/ranks.h"

namespace braid::test {

class Graphs {
 public:
  /// What `enqueue(r)` puts into rank r's stream, captured there and not run.
  template <typename Enqueue>
  Graphs(Ranks& ranks, const Enqueue& enqueue) : ranks_(ranks) {
    for (int r = 0; r < ranks_.size(); ++r) graphs_.push_back(capture(r, enqueue));
    ranks_.wait();
  }
  Graphs(const Graphs&) = delete;
  Graphs& operator=(const Graphs&) = delete;
  ~Graphs() {
    for (const cudaGraphExec_t graph : graphs_) CHECK_CUDA(cudaGraphExecDestroy(graph));
  }

  void launch() {
    for (int r = 0; r < ranks_.size(); ++r) {
      CHECK_CUDA(cudaSetDevice(ranks_[r].device));
      CHECK_CUDA(cudaGraphLaunch(graphs_[static_cast<size_t>(r)], ranks_[r].stream));
    }
  }

  /// Of a second launch, which begins when the first one ends: so all ranks begin together.
  float milliseconds() {
    cudaEvent_t begin, end;
    CHECK_CUDA(cudaSetDevice(ranks_[0].device));
    CHECK_CUDA(cudaEventCreate(&begin));
    CHECK_CUDA(cudaEventCreate(&end));
    launch();
    record(begin);
    launch();
    record(end);
    ranks_.wait();
    float ms = 0;
    CHECK_CUDA(cudaEventElapsedTime(&ms, begin, end));
    CHECK_CUDA(cudaEventDestroy(begin));
    CHECK_CUDA(cudaEventDestroy(end));
    return ms;
  }

 private:
  template <typename Enqueue>
  cudaGraphExec_t capture(int r, const Enqueue& enqueue) {
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    CHECK_CUDA(cudaSetDevice(ranks_[r].device));
    CHECK_CUDA(cudaStreamBeginCapture(ranks_[r].stream, cudaStreamCaptureModeThreadLocal));
    enqueue(r);
    CHECK_CUDA(cudaStreamEndCapture(ranks_[r].stream, &graph));
    CHECK_CUDA(cudaGraphInstantiate(&exec, graph, 0));
    CHECK_CUDA(cudaGraphUpload(exec, ranks_[r].stream));
    CHECK_CUDA(cudaGraphDestroy(graph));
    return exec;
  }

  void record(cudaEvent_t event) {
    CHECK_CUDA(cudaSetDevice(ranks_[0].device));
    CHECK_CUDA(cudaEventRecord(event, ranks_[0].stream));
  }

  Ranks& ranks_;
  std::vector<cudaGraphExec_t> graphs_;
};

}  // namespace braid::test
