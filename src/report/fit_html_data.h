/* SPDX-License-Identifier: MIT */
/* What the script of a page of `memplan fit` reads: samples of the timeline and blocks of the memory map, as compact JSON. */
#ifndef MP_FIT_HTML_DATA_H
#define MP_FIT_HTML_DATA_H

#include "report/memory_map.h"
#include "report/timeline.h"

/**
 *     {"categories": ["parameters", …],
 *      "timeline": {"events": N, "peak": sample, "failed": …, "available": bytes, "geometry": {…}, "stack": [band, …],
 *                   "phases": [[name, first, end], …], "ops": [text, …], "kinds": [[category, op, bytes], …],
 *                   "lists": [[kind, n, kind, n, …], …],
 *                   "event", "phase", "layer", "op", "allocated", "reserved", "list": [difference to the last one, …],
 *                   "live": [by category: [difference, …]]},
 *      "map": {"geometry": {…}, "row": bytes, "largest": block, "segments": [[position, bytes, small, stream, blocks], …],
 *              "ops": [text, …], "blocks": [[bytes, requested, category, op, layer] | [bytes] a hole | [bytes, n] n small ones, …]}}
 */
void mp_fit_html_data(const struct mp_timeline *timeline, const struct mp_timeline_view *view, const struct mp_memory_map *map,
                      struct mp_strbuf *out);

#endif
