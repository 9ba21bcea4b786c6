/* SPDX-License-Identifier: MIT */
/* What `memplan plan` prints: text for people, JSON for programs. */
#ifndef MP_REPORT_PLAN_H
#define MP_REPORT_PLAN_H

#include "plan/plan.h"

#define MP_PLAN_SCHEMA_VERSION 1

void mp_report_plan_text(const struct mp_plan *plan, struct mp_strbuf *out);
void mp_report_plan_json(const struct mp_plan *plan, struct mp_strbuf *out);

#endif
