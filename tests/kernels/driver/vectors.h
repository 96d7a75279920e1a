// Cases of a file that dump.py wrote.
#pragma once
#include <cstdint>
#include <cstring>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

struct Array {
    char type;  // NumPy's letter
    std::vector<int64_t> shape;
    std::vector<uint64_t> memory;  // of the values, aligned

    size_t count() const {
        size_t n = 1;
        for (int64_t size : shape) n *= size_t(size);
        return n;
    }
    const void* data() const { return memory.data(); }
};

// The letter of a C++ type.
template <class T> constexpr char letter_of();
template <> constexpr char letter_of<float>() { return 'f'; }
template <> constexpr char letter_of<double>() { return 'd'; }
template <> constexpr char letter_of<uint8_t>() { return 'B'; }
template <> constexpr char letter_of<uint16_t>() { return 'H'; }
template <> constexpr char letter_of<int32_t>() { return 'i'; }
template <> constexpr char letter_of<int64_t>() { return 'q'; }
template <> constexpr char letter_of<uint64_t>() { return 'L'; }

struct Case {
    std::string name;
    std::map<std::string, Array> arrays;

    std::string op() const { return name.substr(0, name.find(' ')); }
    bool has(const std::string& key) const { return arrays.count(key) != 0; }
    const Array& at(const std::string& key) const {
        auto found = arrays.find(key);
        if (found == arrays.end()) throw std::runtime_error(name + ": no array " + key);
        return found->second;
    }
    template <class T> const T* get(const std::string& key) const {
        const Array& array = at(key);
        if (array.type != letter_of<T>())
            throw std::runtime_error(name + ": " + key + " has type " + array.type + ", expected " + letter_of<T>());
        return static_cast<const T*>(array.data());
    }
    template <class T> std::vector<T> copy(const std::string& key) const {
        return std::vector<T>(get<T>(key), get<T>(key) + at(key).count());
    }
    int rows(const std::string& key) const { return int(at(key).shape.at(0)); }
    int columns(const std::string& key) const { return int(at(key).shape.at(1)); }
    int integer(const std::string& key) const { return int(*get<int64_t>(key)); }
    float number(const std::string& key) const { return float(*get<double>(key)); }
    // Of float32 or float64.
    std::vector<double> doubles(const std::string& key) const;
};

// Throws std::runtime_error when the file cannot be read or is not what dump.py writes.
std::vector<Case> read_vectors(const char* path);
