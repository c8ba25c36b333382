// Copies that the library makes for a kernel's line: told to the checker, then done where it does not look.
#ifndef CUPLATE_COPIES_H
#define CUPLATE_COPIES_H

namespace cuplate {

CUPLATE_SHIM void copied(void* to, const void* from, size_t bytes, unsigned alignment, Site site) {
#if defined(CUPLATE_CHECK) && !defined(CUPLATE_NO_CHECKER)
    chk_aligned(from, alignment, bytes, 0, site.file, site.line);
    chk_aligned(to, alignment, bytes, 1, site.file, site.line);
    cuplate_copy(to, from, (unsigned)bytes);
#else
    (void)alignment;
    (void)site;
    __builtin_memcpy(to, from, bytes);
#endif
}

CUPLATE_SHIM void cleared(void* to, size_t bytes, Site site) {
    static const char zeros[16] = {0};
    for (size_t at = 0; at < bytes; at += sizeof(zeros)) {
        size_t piece = bytes - at < sizeof(zeros) ? bytes - at : sizeof(zeros);
#if defined(CUPLATE_CHECK) && !defined(CUPLATE_NO_CHECKER)
        chk_write((char*)to + at, piece, site.file, site.line);
        cuplate_copy((char*)to + at, zeros, (unsigned)piece);
#else
        (void)site;
        __builtin_memcpy((char*)to + at, zeros, piece);
#endif
    }
}

// One element, for a matrix fragment.
template <class T>
CUPLATE_SHIM T fetched(const T* from, Site site) {
    T value;
#if defined(CUPLATE_CHECK) && !defined(CUPLATE_NO_CHECKER)
    chk_read(from, sizeof(T), site.file, site.line);
    cuplate_copy(&value, from, sizeof(T));
#else
    (void)site;
    __builtin_memcpy((void*)&value, from, sizeof(T));
#endif
    return value;
}
template <class T>
CUPLATE_SHIM void stored(T* to, const T& value, Site site) {
#if defined(CUPLATE_CHECK) && !defined(CUPLATE_NO_CHECKER)
    chk_write(to, sizeof(T), site.file, site.line);
    cuplate_copy(to, &value, sizeof(T));
#else
    (void)site;
    __builtin_memcpy((void*)to, &value, sizeof(T));
#endif
}

}  // namespace cuplate
#endif
