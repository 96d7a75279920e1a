#include "vectors.h"

#include <cstdio>

namespace {

constexpr char kMagic[] = "leafage kernel vectors 1\n";

class Reader {
  public:
    explicit Reader(const char* path) : file_(std::fopen(path, "rb")) {
        if (file_ == nullptr) throw std::runtime_error(std::string("cannot open ") + path);
    }
    ~Reader() { std::fclose(file_); }
    Reader(const Reader&) = delete;
    Reader& operator=(const Reader&) = delete;

    bool at_end() {
        int c = std::fgetc(file_);
        if (c == EOF) return true;
        std::ungetc(c, file_);
        return false;
    }
    void bytes(void* to, size_t n) {
        if (std::fread(to, 1, n, file_) != n) throw std::runtime_error("the file of vectors ends within a case");
    }
    template <class T> T value() {
        T x;
        bytes(&x, sizeof x);
        return x;
    }
    std::string text() {
        std::string s(value<uint32_t>(), 0);
        bytes(s.data(), s.size());
        return s;
    }
    Array array() {
        Array a;
        a.type = value<char>();
        a.shape.resize(value<uint32_t>());
        for (int64_t& size : a.shape) size = value<int64_t>();
        size_t size = std::strchr("dqL", a.type) ? 8 : std::strchr("fi", a.type) ? 4 : a.type == 'H' ? 2 : 1;
        a.memory.resize((a.count() * size + 7) / 8 + 1);
        bytes(a.memory.data(), a.count() * size);
        return a;
    }

  private:
    std::FILE* file_;
};

}  // namespace

std::vector<double> Case::doubles(const std::string& key) const {
    const Array& array = at(key);
    if (array.type == 'd') return copy<double>(key);
    std::vector<float> floats = copy<float>(key);
    return std::vector<double>(floats.begin(), floats.end());
}

std::vector<Case> read_vectors(const char* path) {
    Reader reader(path);
    char magic[sizeof kMagic] = {};
    reader.bytes(magic, sizeof kMagic - 1);
    if (std::strcmp(magic, kMagic) != 0) throw std::runtime_error(std::string(path) + " was not written by dump.py");
    std::vector<Case> cases;
    while (!reader.at_end()) {
        Case one;
        one.name = reader.text();
        for (uint32_t n = reader.value<uint32_t>(); n > 0; --n) {
            std::string key = reader.text();
            one.arrays.emplace(std::move(key), reader.array());
        }
        cases.push_back(std::move(one));
    }
    return cases;
}
