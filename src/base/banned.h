/* SPDX-License-Identifier: MIT */
/* Functions that overflow or hide errors, turned into compile errors (after git's banned.h). */
#ifndef MP_BANNED_H
#define MP_BANNED_H

#define MP_BANNED(function) mp_banned_##function##_use_strbuf_or_units

#undef strcpy
#define strcpy(d, s) MP_BANNED(strcpy)
#undef strcat
#define strcat(d, s) MP_BANNED(strcat)
#undef strncpy
#define strncpy(d, s, n) MP_BANNED(strncpy)
#undef strncat
#define strncat(d, s, n) MP_BANNED(strncat)
#undef strtok
#define strtok(s, d) MP_BANNED(strtok)
#undef sprintf
#define sprintf(...) MP_BANNED(sprintf)
#undef vsprintf
#define vsprintf(...) MP_BANNED(vsprintf)
#undef atoi
#define atoi(s) MP_BANNED(atoi)
#undef atol
#define atol(s) MP_BANNED(atol)
#undef atof
#define atof(s) MP_BANNED(atof)

#endif
