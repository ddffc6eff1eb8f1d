// Loads a SavedModel with TensorFlow's C API and runs it, without Python in the process.
//
//   run_saved_model SAVED_MODEL < calls
//
// Each call is what a test wrote: one line "call INPUTS OUTPUTS"; a line for each input, "NAME INDEX
// TYPE RANK SIZE ... COUNT", where TYPE is a TF_DataType, and behind it COUNT lines with a value
// each, strings as hexadecimal digits behind an "x"; a line "NAME INDEX" for each output. An answer
// has the same form: "outputs N" with a tensor "TYPE RANK SIZE ... COUNT" and its values each; or
// "error MESSAGE", after which the next call is served.

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iostream>
#include <string>
#include <vector>

#include "tensorflow/c/c_api.h"
#include "tensorflow/c/tf_tstring.h"

namespace {

void Fail(const std::string& message) {
  std::cerr << message << std::endl;
  std::exit(1);
}

void Check(const TF_Status* status) {
  if (TF_GetCode(status) != TF_OK) Fail(TF_Message(status));
}

size_t Width(TF_DataType type) {
  return type == TF_STRING ? sizeof(TF_TString) : TF_DataTypeSize(type);
}

std::string FromHex(const std::string& text) {
  std::string bytes;
  for (size_t i = 1; i + 1 < text.size(); i += 2) {
    bytes.push_back(static_cast<char>(std::stoi(text.substr(i, 2), nullptr, 16)));
  }
  return bytes;
}

std::string ToHex(const char* data, size_t size) {
  std::string text = "x";
  char digits[3];
  for (size_t i = 0; i < size; ++i) {
    std::snprintf(digits, sizeof digits, "%02x", static_cast<unsigned char>(data[i]));
    text += digits;
  }
  return text;
}

void ReadValue(TF_DataType type, char* place) {
  if (type == TF_STRING) {
    std::string text;
    std::cin >> text;
    const std::string bytes = FromHex(text);
    TF_TString* string = reinterpret_cast<TF_TString*>(place);
    TF_StringInit(string);
    TF_StringCopy(string, bytes.data(), bytes.size());
  } else if (type == TF_FLOAT) {
    std::cin >> *reinterpret_cast<float*>(place);
  } else if (type == TF_INT32) {
    std::cin >> *reinterpret_cast<int32_t*>(place);
  } else if (type == TF_INT64) {
    std::cin >> *reinterpret_cast<int64_t*>(place);
  } else {
    Fail("a type that is not known");
  }
}

void PrintValue(TF_DataType type, const char* place) {
  if (type == TF_STRING) {
    const TF_TString* string = reinterpret_cast<const TF_TString*>(place);
    std::cout << ToHex(TF_StringGetDataPointer(string), TF_StringGetSize(string));
  } else if (type == TF_FLOAT) {
    std::cout << *reinterpret_cast<const float*>(place);
  } else if (type == TF_INT32) {
    std::cout << *reinterpret_cast<const int32_t*>(place);
  } else {
    Fail("a type that is not known");
  }
  std::cout << "\n";
}

TF_Tensor* ReadTensor() {
  int type, rank, count;
  std::cin >> type >> rank;
  std::vector<int64_t> shape(rank);
  for (int64_t& size : shape) std::cin >> size;
  std::cin >> count;
  const size_t width = Width(static_cast<TF_DataType>(type));
  TF_Tensor* tensor =
      TF_AllocateTensor(static_cast<TF_DataType>(type), shape.data(), rank, width * count);
  char* data = static_cast<char*>(TF_TensorData(tensor));
  for (int i = 0; i < count; ++i) ReadValue(static_cast<TF_DataType>(type), data + i * width);
  return tensor;
}

void PrintTensor(const TF_Tensor* tensor) {
  const TF_DataType type = TF_TensorType(tensor);
  std::cout << type << " " << TF_NumDims(tensor);
  for (int i = 0; i < TF_NumDims(tensor); ++i) std::cout << " " << TF_Dim(tensor, i);
  const int64_t count = TF_TensorElementCount(tensor);
  std::cout << " " << count << "\n";
  const char* data = static_cast<const char*>(TF_TensorData(tensor));
  for (int64_t i = 0; i < count; ++i) PrintValue(type, data + i * Width(type));
}

TF_Output ReadEnd(TF_Graph* graph) {
  std::string name;
  int index;
  std::cin >> name >> index;
  TF_Operation* operation = TF_GraphOperationByName(graph, name.c_str());
  if (operation == nullptr) Fail("the graph has no " + name);
  return {operation, index};
}

void Call(TF_Session* session, TF_Graph* graph, TF_Status* status) {
  int inputs, outputs;
  std::cin >> inputs >> outputs;
  std::vector<TF_Output> feeds, fetches;
  std::vector<TF_Tensor*> fed, fetched(outputs, nullptr);
  for (int i = 0; i < inputs; ++i) {
    feeds.push_back(ReadEnd(graph));
    fed.push_back(ReadTensor());
  }
  for (int i = 0; i < outputs; ++i) fetches.push_back(ReadEnd(graph));
  TF_SessionRun(session, nullptr, feeds.data(), fed.data(), inputs, fetches.data(), fetched.data(),
                outputs, nullptr, 0, nullptr, status);
  for (TF_Tensor* tensor : fed) TF_DeleteTensor(tensor);
  if (TF_GetCode(status) != TF_OK) {
    std::string message = TF_Message(status);
    for (char& letter : message) letter = letter == '\n' ? ' ' : letter;
    std::cout << "error " << message << "\n";
    return;
  }
  std::cout << "outputs " << outputs << "\n";
  for (TF_Tensor* tensor : fetched) {
    PrintTensor(tensor);
    TF_DeleteTensor(tensor);
  }
}

void CheckThatPythonIsAbsent() {
  std::ifstream maps("/proc/self/maps");
  std::string line;
  while (std::getline(maps, line)) {
    if (line.find("libpython") != std::string::npos) Fail("Python is in this process: " + line);
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) Fail("give the folder of a SavedModel");
  TF_Status* status = TF_NewStatus();
  TF_Graph* graph = TF_NewGraph();
  TF_SessionOptions* options = TF_NewSessionOptions();
  const char* tags[] = {"serve"};
  TF_Session* session =
      TF_LoadSessionFromSavedModel(options, nullptr, argv[1], tags, 1, graph, nullptr, status);
  Check(status);
  std::cout.precision(9);
  std::string word;
  while (std::cin >> word) Call(session, graph, status);
  CheckThatPythonIsAbsent();
  TF_CloseSession(session, status);
  Check(status);
  TF_DeleteSession(session, status);
  TF_DeleteSessionOptions(options);
  TF_DeleteGraph(graph);
  TF_DeleteStatus(status);
  return 0;
}
