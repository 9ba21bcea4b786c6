/* SPDX-License-Identifier: MIT */
/* Files of src/report/assets/, built in: what every page carries with it. */
#ifndef MP_ASSETS_H
#define MP_ASSETS_H

extern const char mp_asset_report_css[], mp_asset_report_js[];

#endif
