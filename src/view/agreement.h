/* Where ranks of one group disagree on what they call, and who has not arrived. */
#ifndef TP_VIEW_AGREEMENT_H
#define TP_VIEW_AGREEMENT_H

#include "view/calls.h"

/* Appends to text what was found, for people. *agree: every group's calls are the same on all of
 * its ranks, as far as they are there, and no call is missing. The caller checks text->failed. */
void tp_agreement_report(const tp_calls *calls, tp_buf *text, bool *agree);

#endif
