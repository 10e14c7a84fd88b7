#include "test/support/cuda/event.h"

#include <sys/mman.h>

#include <utility>

namespace torchwire::cuda_stand_in {

Event::Event(int device, unsigned flags) : device_(device), flags_(flags) {}

Event::~Event() {
  if (mapped_ != nullptr) {
    ::munmap(mapped_, sizeof(EventRecord));
  }
}

std::shared_ptr<Event> Event::make(int device, unsigned flags) {
  auto event = std::make_shared<Event>(device, flags);
  if ((flags & cudaEventInterprocess) == 0) {
    event->own_ = std::make_unique<EventRecord>();
    event->record_ = event->own_.get();
    return event;
  }
  event->file_ = SharedFile::make(sizeof(EventRecord));
  return event->file_ && event->map(event->file_) ? event : nullptr;
}

std::shared_ptr<Event> Event::open(int device, const SharedFileName& name) {
  auto event = std::make_shared<Event>(device, cudaEventDisableTiming | cudaEventInterprocess);
  const SharedFile file = SharedFile::open(name);
  return file && file.size() == sizeof(EventRecord) && event->map(file) ? event : nullptr;
}

bool Event::map(const SharedFile& file) {
  char* const address = file.map(PROT_READ | PROT_WRITE);
  mapped_ = record_ = reinterpret_cast<EventRecord*>(address);
  return address != nullptr;
}

} // namespace torchwire::cuda_stand_in
