/* SPDX-License-Identifier: MIT */
/*
 * What people write around a message. A phrase is words with single blanks (any white space, `-` or
 * `_` matches), `*` for the rest of a word, `..` for up to 60 bytes of the same paragraph, `#` for
 * a number, `@` for any name of the first card. The hint that PyTorch itself appends ("… to avoid fragmentation …") is masked first: it
 * stands in every message and says nothing about this one.
 *
 * Words are weaker than figures: one cause collects at most WORDS_MOST points from them.
 */
#include "doctor/evidence.h"

#define WORDS_MOST   7
#define GAP          60
#define WINDOW_BACK  (96 * 1024)
#define WINDOW_AHEAD (48 * 1024)
#define WINDOW_HEAD  (16 * 1024)
#define LEAST_SIDE   300 /* pixels */
#define LARGE_BATCH  16
#define MOST_SIDE    20000

struct phrase {
    const char *words;
    enum mp_cause cause;
    int weight;
};

/* Code that explains a failure by itself, wherever it stands. */
static const struct phrase code_phrases[] = {
    {"retain graph", MP_CAUSE_LEAK, 3},
    {"create graph", MP_CAUSE_LEAK, 2},
    {"append(loss", MP_CAUSE_LEAK, 5},
    {"append(output", MP_CAUSE_LEAK, 4},
    {"append(pred", MP_CAUSE_LEAK, 3},
    {"append(embed*", MP_CAUSE_LEAK, 3},
    {"append(feat*", MP_CAUSE_LEAK, 3},
    {"append(logit*", MP_CAUSE_LEAK, 4},
    {"append(result*", MP_CAUSE_LEAK, 3},
    {"append(score*", MP_CAUSE_LEAK, 3},
    {"append((state", MP_CAUSE_LEAK, 4},
    {"loss += loss", MP_CAUSE_LEAK, 5},
    {"total loss +=", MP_CAUSE_LEAK, 3},
    {"running loss +=", MP_CAUSE_LEAK, 3},
    {"loss.item", MP_CAUSE_LEAK, 2},
    {".item()", MP_CAUSE_LEAK, 2},
    {"loss.detach", MP_CAUSE_LEAK, 3},
    {"eval accumulation steps", MP_CAUSE_EVALUATION, 5},
    {"model.eval()", MP_CAUSE_EVALUATION, 1},
    {"no grad", MP_CAUSE_EVALUATION, 3},
    /* what switched gradients off before 0.4, and does nothing since */
    {"volatile=true", MP_CAUSE_EVALUATION, 4},
    {"volatile was removed", MP_CAUSE_EVALUATION, 4},
    {"map location", MP_CAUSE_CHECKPOINT_IO, 4},
    {"set device", MP_CAUSE_CONTEXT, 3},
    {"finetuning type: full", MP_CAUSE_OPTIMIZER_STATE, 3},
    {"set per process memory fraction", MP_CAUSE_MEMORY_LIMIT, 6},
    {"pin memory=false", MP_CAUSE_HOST_MEMORY, 4},
    {"full state dict", MP_CAUSE_CHECKPOINT_IO, 3},
    {"finetuning type full", MP_CAUSE_OPTIMIZER_STATE, 3},
    {"train type full", MP_CAUSE_OPTIMIZER_STATE, 3},
    {"memoryerror", MP_CAUSE_HOST_MEMORY, 6}, /* Python's own; the allocator's has another name */
    {"arraymemoryerror", MP_CAUSE_HOST_MEMORY, 6},
    {"driver.memoryerror", MP_CAUSE_HOST_MEMORY, -6}, /* PyCUDA's, of the card */
    {"of device memory", MP_CAUSE_HOST_MEMORY, -6},   /* Theano's */
    /* the kernel's killer: a launcher tells no more than the signal */
    {"return code = 9", MP_CAUSE_HOST_MEMORY, 6},
    {"exitcode: 9", MP_CAUSE_HOST_MEMORY, 6},
    {"exitcode : 9", MP_CAUSE_HOST_MEMORY, 6},
};

/* What counts only in sentences: the same words in settings, commands and package lists say
 * nothing. */
static const struct phrase phrases[] = {
    /* a leak is told as growth over time, or as the code that keeps graphs */
    {"memory leak*", MP_CAUSE_LEAK, 4},
    {"leak*", MP_CAUSE_LEAK, 1},
    {"keeps increasing", MP_CAUSE_LEAK, 4},
    {"keep increasing", MP_CAUSE_LEAK, 4},
    {"keeps growing", MP_CAUSE_LEAK, 4},
    {"keeps rising", MP_CAUSE_LEAK, 4},
    {"keep growing", MP_CAUSE_LEAK, 4},
    {"continu* .. increas*", MP_CAUSE_LEAK, 3},
    {"constantly increas*", MP_CAUSE_LEAK, 4},
    {"steadily", MP_CAUSE_LEAK, 3},
    {"gradual*", MP_CAUSE_LEAK, 3},
    {"slowly", MP_CAUSE_LEAK, 2},
    {"slow .. increas*", MP_CAUSE_LEAK, 3},
    {"memory .. increas* .. iteration*", MP_CAUSE_LEAK, 4},
    {"memory .. increas* .. epoch*", MP_CAUSE_LEAK, 4},
    {"memory .. increas* .. step*", MP_CAUSE_LEAK, 4},
    {"memory .. increas* .. time", MP_CAUSE_LEAK, 4},
    {"memory .. grow*", MP_CAUSE_LEAK, 3},
    {"increas* every", MP_CAUSE_LEAK, 4},
    {"increas* each", MP_CAUSE_LEAK, 4},
    {"increas* with each", MP_CAUSE_LEAK, 4},
    {"increas* after each", MP_CAUSE_LEAK, 4},
    {"grows every", MP_CAUSE_LEAK, 4},
    {"more and more", MP_CAUSE_LEAK, 3},
    {"memory accumulat*", MP_CAUSE_LEAK, 4},
    {"accumulat* .. memory", MP_CAUSE_LEAK, 3},
    {"increas* in .. memory", MP_CAUSE_LEAK, 4},
    {"increas* .. over time", MP_CAUSE_LEAK, 4},
    {"usage .. increas*", MP_CAUSE_LEAK, 3},
    {"usage .. grow*", MP_CAUSE_LEAK, 3},
    {"continu* .. grow*", MP_CAUSE_LEAK, 4},
    {"caus* .. to grow", MP_CAUSE_LEAK, 3},
    {"memory .. climb*", MP_CAUSE_LEAK, 4},
    {"memory .. creep*", MP_CAUSE_LEAK, 4},
    {"memory .. pile* up", MP_CAUSE_LEAK, 4},
    {"memory .. build* up", MP_CAUSE_LEAK, 4},
    {"memory .. goes up", MP_CAUSE_LEAK, 3},
    {"keeps allocating", MP_CAUSE_LEAK, 4},
    {"increasing memory", MP_CAUSE_LEAK, 4},
    {"from .. #mb to .. #gb", MP_CAUSE_LEAK, 3},
    {"intermediate output*", MP_CAUSE_LEAK, 3}, /* kept */
    {"intermediate result*", MP_CAUSE_LEAK, 3},
    {"constant* increment*", MP_CAUSE_LEAK, 4},
    {"memory .. increment*", MP_CAUSE_LEAK, 3},
    {"adds up", MP_CAUSE_LEAK, 3},
    {"piling up", MP_CAUSE_LEAK, 4},
    {"garbage collect*", MP_CAUSE_LEAK, 2},
    {"after .. # image*", MP_CAUSE_LEAK, 3},
    {"after .. # sample*", MP_CAUSE_LEAK, 3},
    {"after .. # file*", MP_CAUSE_LEAK, 3},
    {"after .. # video*", MP_CAUSE_LEAK, 3},
    {"after .. # frame*", MP_CAUSE_LEAK, 3},
    {"after .. request*", MP_CAUSE_LEAK, 3},
    {"after processing", MP_CAUSE_LEAK, 3},
    {"larger dataset*", MP_CAUSE_LEAK, 2},
    {"after .. calls", MP_CAUSE_LEAK, 3},
    {"works .. first .. second", MP_CAUSE_LEAK, 3},
    {"first .. works .. second", MP_CAUSE_LEAK, 3},
    {"first .. fine .. second", MP_CAUSE_LEAK, 3},
    {"first .. correct* .. second", MP_CAUSE_LEAK, 3},
    {"second frame", MP_CAUSE_LEAK, 3},
    {"second video", MP_CAUSE_LEAK, 3},
    {"second prompt", MP_CAUSE_LEAK, 3},
    {"second file", MP_CAUSE_LEAK, 3},
    {"second audio", MP_CAUSE_LEAK, 3},
    {"on the second", MP_CAUSE_LEAK, 3},
    {"from the second", MP_CAUSE_LEAK, 3},
    {"over and over", MP_CAUSE_LEAK, 3},
    {"again and again", MP_CAUSE_LEAK, 3},
    {"every call", MP_CAUSE_LEAK, 3},
    {"each call", MP_CAUSE_LEAK, 3},
    {"every iteration", MP_CAUSE_LEAK, 3},
    {"each iteration", MP_CAUSE_LEAK, 2},
    {"every step", MP_CAUSE_LEAK, 2},
    {"each request", MP_CAUSE_LEAK, 3},
    {"every request", MP_CAUSE_LEAK, 3},
    {"kept on .. gpu", MP_CAUSE_LEAK, 3},
    {"stay* on .. gpu", MP_CAUSE_LEAK, 3},
    {"remain* on .. gpu", MP_CAUSE_LEAK, 3},
    {"remain* in .. memory", MP_CAUSE_LEAK, 3},
    {"crash* after", MP_CAUSE_LEAK, 2},
    {"fail* after", MP_CAUSE_LEAK, 2},
    {"memory increas*", MP_CAUSE_LEAK, 3},
    {"every trial", MP_CAUSE_LEAK,
     3}, /* many models in one process: something keeps the last one */
    {"each trial", MP_CAUSE_LEAK, 3},
    {"trials", MP_CAUSE_LEAK, 2},
    {"hyperparam* search", MP_CAUSE_LEAK, 3},
    {"hyper param* search", MP_CAUSE_LEAK, 3},
    {"hyperparam* tun*", MP_CAUSE_LEAK, 3},
    {"hyper param* tun*", MP_CAUSE_LEAK, 3},
    {"optimal hyper*", MP_CAUSE_LEAK, 2},
    {"multiple .. runs", MP_CAUSE_LEAK, 3},
    {"cross validation", MP_CAUSE_LEAK, 3},
    {"each fold", MP_CAUSE_LEAK, 3},
    {"later iteration*", MP_CAUSE_LEAK, 3},
    {"through iterations", MP_CAUSE_LEAK, 3},
    {"memory .. linear*", MP_CAUSE_LEAK, 3},
    {"increas* the memory", MP_CAUSE_LEAK, 3},
    {"clear* of memory", MP_CAUSE_LEAK, 2},
    {"eventually", MP_CAUSE_LEAK, 2},
    {"runs fine for", MP_CAUSE_LEAK, 3},
    {"works fine for", MP_CAUSE_LEAK, 2},
    {"second image", MP_CAUSE_LEAK, 3},
    {"second run", MP_CAUSE_LEAK, 3},
    {"second generation", MP_CAUSE_LEAK, 3},
    {"second call", MP_CAUSE_LEAK, 3},
    {"after .. generations", MP_CAUSE_LEAK, 3},
    {"after .. few images", MP_CAUSE_LEAK, 3},
    {"in a loop", MP_CAUSE_LEAK, 2},
    {"after .. # epoch*", MP_CAUSE_LEAK, 3},
    {"after .. few epoch*", MP_CAUSE_LEAK, 3},
    {"after several epoch*", MP_CAUSE_LEAK, 3},
    {"after some epoch*", MP_CAUSE_LEAK, 3},
    {"after the first epoch", MP_CAUSE_LEAK, 2},
    {"after one epoch", MP_CAUSE_LEAK, 2},
    {"after .. iterat*", MP_CAUSE_LEAK, 3},
    {"after .. # iter*", MP_CAUSE_LEAK, 2},
    {"after .. # step*", MP_CAUSE_LEAK, 3},
    {"after .. # batch*", MP_CAUSE_LEAK, 3},
    {"after each epoch", MP_CAUSE_LEAK, 3},
    {"each epoch", MP_CAUSE_LEAK, 1},
    {"every epoch", MP_CAUSE_LEAK, 1},
    {"memory .. accumulat*", MP_CAUSE_LEAK, 3},
    {"gc collect", MP_CAUSE_LEAK, 1},
    {"after .. hours", MP_CAUSE_LEAK, 2},
    {"after several .. step*", MP_CAUSE_LEAK, 3},
    {"after some .. step*", MP_CAUSE_LEAK, 3},
    {"after .. few step*", MP_CAUSE_LEAK, 3},
    {"after .. minutes", MP_CAUSE_LEAK, 2},
    {"around .. # min*", MP_CAUSE_LEAK, 2},
    {"after a while", MP_CAUSE_LEAK, 3},
    {"for a while", MP_CAUSE_LEAK, 3},
    {"after some time", MP_CAUSE_LEAK, 3},
    {"until .. epoch", MP_CAUSE_LEAK, 3},
    {"second .. epoch", MP_CAUSE_LEAK, 3},
    {"2nd epoch", MP_CAUSE_LEAK, 3},
    {"third epoch", MP_CAUSE_LEAK, 2},
    {"not released", MP_CAUSE_LEAK, 3},
    {"not being released", MP_CAUSE_LEAK, 3},
    {"not being freed", MP_CAUSE_LEAK, 3},
    {"never released", MP_CAUSE_LEAK, 3},
    {"not release", MP_CAUSE_LEAK, 3},
    {"isn't released", MP_CAUSE_LEAK, 3},
    {"isn't freed", MP_CAUSE_LEAK, 3},
    {"doesn't release", MP_CAUSE_LEAK, 3},
    {"not releasing", MP_CAUSE_LEAK, 3},
    {"not freeing", MP_CAUSE_LEAK, 3},
    {"not freed", MP_CAUSE_LEAK, 3},
    {"not free", MP_CAUSE_LEAK, 3},
    {"don't free", MP_CAUSE_LEAK, 3},
    {"does not free", MP_CAUSE_LEAK, 3},
    {"doesn't free", MP_CAUSE_LEAK, 3},
    {"del model", MP_CAUSE_LEAK, 2},
    {"deleting", MP_CAUSE_LEAK, 1},
    {"repeatedly", MP_CAUSE_LEAK, 3},
    {"second pass", MP_CAUSE_LEAK, 3},
    {"2nd pass", MP_CAUSE_LEAK, 3},
    {"second time", MP_CAUSE_LEAK, 2},
    {"multiple times", MP_CAUSE_LEAK, 1},
    {"each loop", MP_CAUSE_LEAK, 3},
    {"residual memory", MP_CAUSE_LEAK, 3},
    {"never freed", MP_CAUSE_LEAK, 3},
    {"accumulat* .. loss*", MP_CAUSE_LEAK, 2},
    {"computation graph", MP_CAUSE_LEAK, 2},
    {"computational graph", MP_CAUSE_LEAK, 2},
    {"\xE6\xB3\x84\xE6\xBC\x8F", MP_CAUSE_LEAK, 4},                         /* leak */
    {"\xE6\xB3\x84\xE9\x9C\xB2", MP_CAUSE_LEAK, 4},                         /* leak */
    {"\xE8\xB6\x8A\xE6\x9D\xA5\xE8\xB6\x8A", MP_CAUSE_LEAK, 3},             /* more and more */
    {"\xE4\xB8\x8D\xE6\x96\xAD\xE5\xA2\x9E", MP_CAUSE_LEAK, 4},             /* keeps growing */
    {"\xE4\xB8\x80\xE6\xAE\xB5\xE6\x97\xB6\xE9\x97\xB4", MP_CAUSE_LEAK, 2}, /* for some time */

    {"during evaluation", MP_CAUSE_EVALUATION, 5},
    {"during validation", MP_CAUSE_EVALUATION, 5},
    {"during eval", MP_CAUSE_EVALUATION, 5},
    {"during the evaluation", MP_CAUSE_EVALUATION, 5},
    {"during the validation", MP_CAUSE_EVALUATION, 5},
    {"during test*", MP_CAUSE_EVALUATION, 4},
    {"for testing", MP_CAUSE_EVALUATION, 2},
    {"during .. eval*", MP_CAUSE_EVALUATION, 3},
    {"during .. valid*", MP_CAUSE_EVALUATION, 3},
    {"in validation", MP_CAUSE_EVALUATION, 3},
    {"on validation", MP_CAUSE_EVALUATION, 4},
    {"in evaluation", MP_CAUSE_EVALUATION, 3},
    {"on evaluation", MP_CAUSE_EVALUATION, 4},
    {"validation .. out of memory", MP_CAUSE_EVALUATION, 3},
    {"validation .. oom", MP_CAUSE_EVALUATION, 3},
    {"evaluation .. out of memory", MP_CAUSE_EVALUATION, 3},
    {"evaluation .. oom", MP_CAUSE_EVALUATION, 3},
    {"oom .. evaluat*", MP_CAUSE_EVALUATION, 3},
    {"oom .. validat*", MP_CAUSE_EVALUATION, 3},
    {"out of memory .. validat*", MP_CAUSE_EVALUATION, 3},
    {"out of memory .. evaluat*", MP_CAUSE_EVALUATION, 3},
    {"doing .. evaluation", MP_CAUSE_EVALUATION, 4},
    {"when evaluating", MP_CAUSE_EVALUATION, 5},
    {"trainer.evaluate", MP_CAUSE_EVALUATION, 4},
    {"evalu*", MP_CAUSE_EVALUATION, 2},
    {"cross validation", MP_CAUSE_EVALUATION, -5}, /* trains several models */
    {"validation", MP_CAUSE_EVALUATION, 2},
    {"running validation", MP_CAUSE_EVALUATION, 2},
    {"val stage", MP_CAUSE_EVALUATION, 4},
    {"val phase", MP_CAUSE_EVALUATION, 4},
    {"eval stage", MP_CAUSE_EVALUATION, 4},
    {"eval phase", MP_CAUSE_EVALUATION, 4},
    {"validate", MP_CAUSE_EVALUATION, 2},
    {"validation time", MP_CAUSE_EVALUATION, 3},
    {"at validation", MP_CAUSE_EVALUATION, 3},
    {"at evaluation", MP_CAUSE_EVALUATION, 3},
    {"between epochs", MP_CAUSE_EVALUATION, 3},
    {"at test time", MP_CAUSE_EVALUATION, 3},
    {"during val", MP_CAUSE_EVALUATION, 5},
    {"in val", MP_CAUSE_EVALUATION, 3},
    {"validation images", MP_CAUSE_EVALUATION, 2},
    {"validation dataset", MP_CAUSE_EVALUATION, 2},
    {"validation data", MP_CAUSE_EVALUATION, 1},
    {"test dataset", MP_CAUSE_EVALUATION, 1},
    {"train* .. no problem*", MP_CAUSE_EVALUATION, 2},
    {"train* .. okay", MP_CAUSE_EVALUATION, 2},
    {"train* .. works", MP_CAUSE_EVALUATION, 1},
    {"train* .. normal*", MP_CAUSE_EVALUATION, 2},
    {"can train", MP_CAUSE_EVALUATION, 2},
    {"model trains .. but", MP_CAUSE_EVALUATION, 2},
    {"accumulat* .. predictions", MP_CAUSE_EVALUATION, 4},
    {"all predictions", MP_CAUSE_EVALUATION, 3},
    {"all the predictions", MP_CAUSE_EVALUATION, 3},
    {"keep* .. predictions", MP_CAUSE_EVALUATION, 3},
    {"stor* .. predictions", MP_CAUSE_EVALUATION, 3},
    {"concat* .. predictions", MP_CAUSE_EVALUATION, 3},
    {"gather* .. predictions", MP_CAUSE_EVALUATION, 3},
    {"test .. error", MP_CAUSE_EVALUATION, 2},
    {"train* .. ok", MP_CAUSE_EVALUATION, 2},
    {"train* .. fine", MP_CAUSE_EVALUATION, 2},
    {"val step*", MP_CAUSE_EVALUATION, 3},
    {"val loop", MP_CAUSE_EVALUATION, 3},
    {"val epoch", MP_CAUSE_EVALUATION, 3},
    {"val loader", MP_CAUSE_EVALUATION, 2},
    {"validat* .. start*", MP_CAUSE_EVALUATION, 3},
    {"start* .. validat*", MP_CAUSE_EVALUATION, 3},
    {"start* .. evaluat*", MP_CAUSE_EVALUATION, 3},
    {"sanity check", MP_CAUSE_EVALUATION, 3},
    {"test time", MP_CAUSE_EVALUATION, 3},
    {"test without", MP_CAUSE_EVALUATION, 3},
    {"while testing", MP_CAUSE_EVALUATION, 4},
    {"without backward", MP_CAUSE_EVALUATION, 3},
    {"pytorch0.3 .. 0.4", MP_CAUSE_EVALUATION, 3}, /* 0.4 ended `volatile` */
    {"pytorch 0.3 .. 0.4", MP_CAUSE_EVALUATION, 3},
    {"predict*", MP_CAUSE_EVALUATION, 1},
    {"when validating", MP_CAUSE_EVALUATION, 5},
    {"when validation", MP_CAUSE_EVALUATION, 4},
    {"validating", MP_CAUSE_EVALUATION, 4},
    {"evaluating", MP_CAUSE_EVALUATION, 3},
    {"when evaluation", MP_CAUSE_EVALUATION, 4},
    {"when doing val", MP_CAUSE_EVALUATION, 4},
    {"while evaluating", MP_CAUSE_EVALUATION, 5},
    {"eval", MP_CAUSE_EVALUATION, 3},
    {"testing phase", MP_CAUSE_EVALUATION, 4},
    {"test phase", MP_CAUSE_EVALUATION, 4},
    {"validation stage", MP_CAUSE_EVALUATION, 4},
    {"evaluation stage", MP_CAUSE_EVALUATION, 4},
    {"when testing", MP_CAUSE_EVALUATION, 4},
    {"evaluation step*", MP_CAUSE_EVALUATION, 3},
    {"validation step*", MP_CAUSE_EVALUATION, 3},
    {"validation loop", MP_CAUSE_EVALUATION, 4},
    {"validation set", MP_CAUSE_EVALUATION, 2},
    {"test set", MP_CAUSE_EVALUATION, 2},
    {"evaluation loop", MP_CAUSE_EVALUATION, 4},
    {"validation phase", MP_CAUSE_EVALUATION, 4},
    {"eval batch size", MP_CAUSE_EVALUATION, 2},
    {"compute metrics", MP_CAUSE_EVALUATION, 2},
    {"training work*", MP_CAUSE_EVALUATION, 1},
    {"\xE9\xAA\x8C\xE8\xAF\x81", MP_CAUSE_EVALUATION, 3}, /* validation */
    {"\xE8\xAF\x84\xE4\xBC\xB0", MP_CAUSE_EVALUATION, 3}, /* evaluation */

    {"resum*", MP_CAUSE_CHECKPOINT_IO, 4},
    {"model checkpoint*", MP_CAUSE_CHECKPOINT_IO, 3},
    {"disabl* .. checkpoint*", MP_CAUSE_CHECKPOINT_IO, 3},
    {"load* .. checkpoint", MP_CAUSE_CHECKPOINT_IO, 3},
    {"sav* .. checkpoint*", MP_CAUSE_CHECKPOINT_IO, 4},
    {"sav* the model", MP_CAUSE_CHECKPOINT_IO, 4},
    {"save every", MP_CAUSE_CHECKPOINT_IO, 4},
    {"creat* .. checkpoint", MP_CAUSE_CHECKPOINT_IO, 3},
    {"training .. finish*", MP_CAUSE_CHECKPOINT_IO, 3},
    {"finish* training", MP_CAUSE_CHECKPOINT_IO, 3},
    {"last epoch", MP_CAUSE_CHECKPOINT_IO, 3},
    {"end of training", MP_CAUSE_CHECKPOINT_IO, 3},
    {"consolidat*", MP_CAUSE_CHECKPOINT_IO, 4},
    {"sav* model", MP_CAUSE_CHECKPOINT_IO, 3},
    {"when saving", MP_CAUSE_CHECKPOINT_IO, 4},
    {"while saving", MP_CAUSE_CHECKPOINT_IO, 4},
    {"during saving", MP_CAUSE_CHECKPOINT_IO, 4},
    {"saving", MP_CAUSE_CHECKPOINT_IO, 2},
    {"sav* .. ckpt", MP_CAUSE_CHECKPOINT_IO, 3},
    {"sav* .. weights", MP_CAUSE_CHECKPOINT_IO, 3},
    {"load* .. ckpt", MP_CAUSE_CHECKPOINT_IO, 3},
    {"load* optim*", MP_CAUSE_CHECKPOINT_IO, 4},
    {"load state dict", MP_CAUSE_CHECKPOINT_IO, 2},
    {"restor* .. checkpoint", MP_CAUSE_CHECKPOINT_IO, 4},
    {"reload* .. model", MP_CAUSE_CHECKPOINT_IO, 2},
    {"load state", MP_CAUSE_CHECKPOINT_IO, 2},
    {"save state", MP_CAUSE_CHECKPOINT_IO, 2},
    {"load .. memory .. doubl*", MP_CAUSE_CHECKPOINT_IO, 4},
    {"doubl* .. memory", MP_CAUSE_CHECKPOINT_IO, 3},
    {"memory .. doubl*", MP_CAUSE_CHECKPOINT_IO, 3},
    {"twice .. memory", MP_CAUSE_CHECKPOINT_IO, 2},
    {"surge* .. load*", MP_CAUSE_CHECKPOINT_IO, 3},
    {"trained model", MP_CAUSE_CHECKPOINT_IO, 1},
    {"merging", MP_CAUSE_CHECKPOINT_IO, 3},
    {"lora merg*", MP_CAUSE_CHECKPOINT_IO, 3},
    {"merg* .. weights", MP_CAUSE_CHECKPOINT_IO, 3},
    {"save pretrained merged", MP_CAUSE_CHECKPOINT_IO, 4},
    {"state dict", MP_CAUSE_CHECKPOINT_IO, 2},
    {"sav* a model", MP_CAUSE_CHECKPOINT_IO, 4},
    {"sav* .. trained", MP_CAUSE_CHECKPOINT_IO, 3},
    {"continue training", MP_CAUSE_CHECKPOINT_IO, 2},
    {"load best model at end", MP_CAUSE_CHECKPOINT_IO, 3},
    {"save pretrained", MP_CAUSE_CHECKPOINT_IO, 2},
    {"merg* .. lora", MP_CAUSE_CHECKPOINT_IO, 2},
    {"from checkpoint", MP_CAUSE_CHECKPOINT_IO, 3},
    {"\xE4\xBF\x9D\xE5\xAD\x98", MP_CAUSE_CHECKPOINT_IO, 3}, /* save */
    {"\xE6\x96\xAD\xE7\x82\xB9", MP_CAUSE_CHECKPOINT_IO, 4}, /* checkpoint (resume) */

    {"load* the model", MP_CAUSE_MODEL_TOO_LARGE, 3},
    {"load* model", MP_CAUSE_MODEL_TOO_LARGE, 3},
    {"while loading", MP_CAUSE_MODEL_TOO_LARGE, 2},
    {"when loading", MP_CAUSE_MODEL_TOO_LARGE, 2},
    {"model is too big", MP_CAUSE_MODEL_TOO_LARGE, 5},
    {"model is too large", MP_CAUSE_MODEL_TOO_LARGE, 5},
    {"model too large", MP_CAUSE_MODEL_TOO_LARGE, 5},
    {"model .. doesn't fit", MP_CAUSE_MODEL_TOO_LARGE, 4},
    {"model .. does not fit", MP_CAUSE_MODEL_TOO_LARGE, 4},
    {"model .. cannot fit", MP_CAUSE_MODEL_TOO_LARGE, 4},
    {"fit in", MP_CAUSE_MODEL_TOO_LARGE, 1},
    {"model .. not fit", MP_CAUSE_MODEL_TOO_LARGE, 4},
    {"not fit", MP_CAUSE_MODEL_TOO_LARGE, 3},
    {"big models", MP_CAUSE_MODEL_TOO_LARGE, 3},
    {"large models", MP_CAUSE_MODEL_TOO_LARGE, 2},
    {"larger model*", MP_CAUSE_MODEL_TOO_LARGE, 2},
    {"bigger model*", MP_CAUSE_MODEL_TOO_LARGE, 2},
    {"loading checkpoint", MP_CAUSE_MODEL_TOO_LARGE, 2},
    {"only use* 1 gpu", MP_CAUSE_MODEL_TOO_LARGE, 2},
    {"model .. won't fit", MP_CAUSE_MODEL_TOO_LARGE, 4},
    {"weight loading", MP_CAUSE_MODEL_TOO_LARGE, 4},
    {"failed to load", MP_CAUSE_MODEL_TOO_LARGE, 3},
    {"loading .. weights", MP_CAUSE_MODEL_TOO_LARGE, 3},
    {"load* .. llm", MP_CAUSE_MODEL_TOO_LARGE, 3},
    {"not enough vram", MP_CAUSE_MODEL_TOO_LARGE, 2},
    {"insufficient vram", MP_CAUSE_MODEL_TOO_LARGE, 2},
    {"how much vram", MP_CAUSE_MODEL_TOO_LARGE, 2},
    {"gpu .. requirement*", MP_CAUSE_MODEL_TOO_LARGE, 1},
    {"large model", MP_CAUSE_MODEL_TOO_LARGE, 1},
    {"load in 8bit", MP_CAUSE_MODEL_TOO_LARGE, 2},
    {"load in 4bit", MP_CAUSE_MODEL_TOO_LARGE, 2},
    {"quantiz*", MP_CAUSE_MODEL_TOO_LARGE, 1},
    {"cpu offload*", MP_CAUSE_MODEL_TOO_LARGE, 1},
    {"device map", MP_CAUSE_MODEL_TOO_LARGE, 1},
    {"batch size .. 1 .. still", MP_CAUSE_MODEL_TOO_LARGE, 1},
    {"even .. batch size .. 1", MP_CAUSE_MODEL_TOO_LARGE, 1},
    {"batch size .. no success", MP_CAUSE_MODEL_TOO_LARGE, 3},
    {"batch size .. not help*", MP_CAUSE_MODEL_TOO_LARGE, 2},
    {"batch size .. same error", MP_CAUSE_MODEL_TOO_LARGE, 2},
    {"only has .. gb", MP_CAUSE_MODEL_TOO_LARGE, 3},
    {"has only .. gb", MP_CAUSE_MODEL_TOO_LARGE, 3},
    {"only .. gb of memory", MP_CAUSE_MODEL_TOO_LARGE, 3},
    {"only .. gb vram", MP_CAUSE_MODEL_TOO_LARGE, 3},
    {"how much .. memory", MP_CAUSE_MODEL_TOO_LARGE, 1},
    {"minimum .. memory", MP_CAUSE_MODEL_TOO_LARGE, 1},
    {"vram", MP_CAUSE_MODEL_TOO_LARGE, 1},
    {"smaller model", MP_CAUSE_MODEL_TOO_LARGE, 3},
    {"model .. too big", MP_CAUSE_MODEL_TOO_LARGE, 4},
    {"model .. too large", MP_CAUSE_MODEL_TOO_LARGE, 4},
    {"model size", MP_CAUSE_MODEL_TOO_LARGE, 2},
    {"hidden dim*", MP_CAUSE_MODEL_TOO_LARGE, 2},
    {"embedding dim*", MP_CAUSE_MODEL_TOO_LARGE, 2},
    {"embedding table*", MP_CAUSE_MODEL_TOO_LARGE, 3},
    {"serving", MP_CAUSE_MODEL_TOO_LARGE, 1},
    {"\xE5\x8A\xA0\xE8\xBD\xBD\xE6\xA8\xA1\xE5\x9E\x8B", MP_CAUSE_MODEL_TOO_LARGE,
     3}, /* load the model */

    {"batch size", MP_CAUSE_ACTIVATIONS, 2},
    {"batchsize", MP_CAUSE_ACTIVATIONS, 2},
    {"big batch*", MP_CAUSE_ACTIVATIONS, 3},
    {"bigger batch*", MP_CAUSE_ACTIVATIONS, 3},
    {"subdivision*", MP_CAUSE_ACTIVATIONS, 3}, /* of a batch: Darknet */
    {"large batch*", MP_CAUSE_ACTIVATIONS, 3},
    {"dataparallel", MP_CAUSE_ACTIVATIONS, 2},
    {"data parallel", MP_CAUSE_ACTIVATIONS, 2},
    {"memory .. peak", MP_CAUSE_ACTIVATIONS, 1},
    {"response* length", MP_CAUSE_ACTIVATIONS, 3},
    {"input size", MP_CAUSE_ACTIVATIONS, 2},
    {"patch size", MP_CAUSE_ACTIVATIONS, 2},
    {"mini batch", MP_CAUSE_ACTIVATIONS, 1},
    {"huge context", MP_CAUSE_ACTIVATIONS, 4},
    {"high res*", MP_CAUSE_ACTIVATIONS, 2},
    {"hires*", MP_CAUSE_ACTIVATIONS, 3},
    {"batch size .. no success", MP_CAUSE_ACTIVATIONS, -4},
    {"batch size .. not help*", MP_CAUSE_ACTIVATIONS, -3},
    {"batch size .. same error", MP_CAUSE_ACTIVATIONS, -3},
    {"reduc* .. batch", MP_CAUSE_ACTIVATIONS, 3},
    {"decreas* .. batch", MP_CAUSE_ACTIVATIONS, 3},
    {"lower* .. batch", MP_CAUSE_ACTIVATIONS, 3},
    {"smaller batch", MP_CAUSE_ACTIVATIONS, 3},
    {"larger batch", MP_CAUSE_ACTIVATIONS, 3},
    {"image size", MP_CAUSE_ACTIVATIONS, 3},
    {"size of .. image*", MP_CAUSE_ACTIVATIONS, 3},
    {"input .. is large", MP_CAUSE_ACTIVATIONS, 3},
    {"input .. is big", MP_CAUSE_ACTIVATIONS, 3},
    {"img size", MP_CAUSE_ACTIVATIONS, 3},
    {"large image*", MP_CAUSE_ACTIVATIONS, 4},
    {"bigger image*", MP_CAUSE_ACTIVATIONS, 4},
    {"large picture*", MP_CAUSE_ACTIVATIONS, 4},
    {"hd image*", MP_CAUSE_ACTIVATIONS, 3},
    {"image dimension*", MP_CAUSE_ACTIVATIONS, 3},
    {"2k", MP_CAUSE_ACTIVATIONS, 2},
    {"full hd", MP_CAUSE_ACTIVATIONS, 3},
    {"full resolution", MP_CAUSE_ACTIVATIONS, 3},
    {"original resolution", MP_CAUSE_ACTIVATIONS, 3},
    {"input resolution", MP_CAUSE_ACTIVATIONS, 3},
    {"size of the input", MP_CAUSE_ACTIVATIONS, 3},
    {"number of tokens", MP_CAUSE_ACTIVATIONS, 3},
    {"number of rays", MP_CAUSE_ACTIVATIONS, 3},
    {"rays per *", MP_CAUSE_ACTIVATIONS, 3},
    {"num points", MP_CAUSE_ACTIVATIONS, 2},
    {"num samples", MP_CAUSE_ACTIVATIONS, 2},
    {"long conversation*", MP_CAUSE_ACTIVATIONS, 3},
    {"long chat*", MP_CAUSE_ACTIVATIONS, 3},
    {"longer text*", MP_CAUSE_ACTIVATIONS, 4},
    {"longer sentence*", MP_CAUSE_ACTIVATIONS, 4},
    {"long file*", MP_CAUSE_ACTIVATIONS, 3},
    {"longer audio", MP_CAUSE_ACTIVATIONS, 4},
    {"longer video*", MP_CAUSE_ACTIVATIONS, 3},
    {"window size", MP_CAUSE_ACTIVATIONS, 2},
    {"volume size", MP_CAUSE_ACTIVATIONS, 3},
    {"more frames", MP_CAUSE_ACTIVATIONS, 3},
    {"large batches", MP_CAUSE_ACTIVATIONS, 3},
    {"image .. too big", MP_CAUSE_ACTIVATIONS, 4},
    {"image .. too large", MP_CAUSE_ACTIVATIONS, 4},
    {"high resolution", MP_CAUSE_ACTIVATIONS, 3},
    {"resolution", MP_CAUSE_ACTIVATIONS, 2},
    {"upscal*", MP_CAUSE_ACTIVATIONS, 3},
    {"tile", MP_CAUSE_ACTIVATIONS, 1},
    {"crop*", MP_CAUSE_ACTIVATIONS, 2},
    {"resiz*", MP_CAUSE_ACTIVATIONS, 2},
    {"sequence length", MP_CAUSE_ACTIVATIONS, 3},
    {"seq len*", MP_CAUSE_ACTIVATIONS, 2},
    {"max length", MP_CAUSE_ACTIVATIONS, 2},
    {"max seq*", MP_CAUSE_ACTIVATIONS, 2},
    {"cutoff len", MP_CAUSE_ACTIVATIONS, 3},
    {"cut off", MP_CAUSE_ACTIVATIONS, 3},
    {"larger input*", MP_CAUSE_ACTIVATIONS, 3},
    {"bigger input*", MP_CAUSE_ACTIVATIONS, 3},
    {"full size", MP_CAUSE_ACTIVATIONS, 2},
    {"context length", MP_CAUSE_ACTIVATIONS, 3},
    {"long context", MP_CAUSE_ACTIVATIONS, 3},
    {"long sequence*", MP_CAUSE_ACTIVATIONS, 4},
    {"long * sequence*", MP_CAUSE_ACTIVATIONS, 4},
    {"large sequence*", MP_CAUSE_ACTIVATIONS, 4},
    {"longer sequence*", MP_CAUSE_ACTIVATIONS, 4},
    {"long input*", MP_CAUSE_ACTIVATIONS, 3},
    {"long audio*", MP_CAUSE_ACTIVATIONS, 4},
    {"long record*", MP_CAUSE_ACTIVATIONS, 4},
    {"long speech", MP_CAUSE_ACTIVATIONS, 4},
    {"long sample*", MP_CAUSE_ACTIVATIONS, 4},
    {"long document*", MP_CAUSE_ACTIVATIONS, 4},
    {"long text*", MP_CAUSE_ACTIVATIONS, 4},
    {"long prompt*", MP_CAUSE_ACTIVATIONS, 4},
    {"too long", MP_CAUSE_ACTIVATIONS, 2},
    {"large input*", MP_CAUSE_ACTIVATIONS, 3},
    {"large graph*", MP_CAUSE_ACTIVATIONS, 3},
    {"number of points", MP_CAUSE_ACTIVATIONS, 2},
    {"k points", MP_CAUSE_ACTIVATIONS, 1},
    {"points per *", MP_CAUSE_ACTIVATIONS, 3},
    {"pixels", MP_CAUSE_ACTIVATIONS, 2},
    {"input images", MP_CAUSE_ACTIVATIONS, 1},
    {"long sentence*", MP_CAUSE_ACTIVATIONS, 4},
    {"long video*", MP_CAUSE_ACTIVATIONS, 3},
    {"number of frames", MP_CAUSE_ACTIVATIONS, 3},
    {"num frames", MP_CAUSE_ACTIVATIONS, 2},
    {"gt *box*", MP_CAUSE_ACTIVATIONS, 4},    /* their overlaps with all anchors are a matrix */
    {"amino acid*", MP_CAUSE_ACTIVATIONS, 3}, /* a sequence's length, in biology */
    {"residues", MP_CAUSE_ACTIVATIONS, 3},
    {"chunk size", MP_CAUSE_ACTIVATIONS, 2},
    {"multi scale", MP_CAUSE_ACTIVATIONS, 3},
    {"frames", MP_CAUSE_ACTIVATIONS, 2},
    {"gt instance*", MP_CAUSE_ACTIVATIONS, 4},
    {"many gt*", MP_CAUSE_ACTIVATIONS, 4},
    {"ground truths", MP_CAUSE_ACTIVATIONS, 4},
    {"many objects", MP_CAUSE_ACTIVATIONS, 3},
    {"max tokens", MP_CAUSE_ACTIVATIONS, 3},
    {"max new tokens", MP_CAUSE_ACTIVATIONS, 2},
    {"max .. length", MP_CAUSE_ACTIVATIONS, 2},
    {"completion* length", MP_CAUSE_ACTIVATIONS, 3},
    {"prompt length", MP_CAUSE_ACTIVATIONS, 3},
    {"full batch", MP_CAUSE_ACTIVATIONS, 4},
    {"k nodes", MP_CAUSE_ACTIVATIONS, 3},
    {"# nodes", MP_CAUSE_ACTIVATIONS, 3},
    {"lot of nodes", MP_CAUSE_ACTIVATIONS, 3},
    {"adjacency", MP_CAUSE_ACTIVATIONS, 3},
    {"4k", MP_CAUSE_ACTIVATIONS, 2},
    {"1080p", MP_CAUSE_ACTIVATIONS, 2},
    {"big image*", MP_CAUSE_ACTIVATIONS, 4},
    {"larger image*", MP_CAUSE_ACTIVATIONS, 4},
    {"smaller image*", MP_CAUSE_ACTIVATIONS, 3},
    {"gradient checkpointing", MP_CAUSE_ACTIVATIONS, 1},
    {"flash attention", MP_CAUSE_ACTIVATIONS, 1},
    {"point cloud*", MP_CAUSE_ACTIVATIONS, 1},
    {"training .. own dataset", MP_CAUSE_ACTIVATIONS, 1},

    {"gradient accumulation .. out of memory", MP_CAUSE_ACCUMULATION, 4},
    {"gradient accumulation .. oom", MP_CAUSE_ACCUMULATION, 4},
    {"gradient accumulation .. increas*", MP_CAUSE_ACCUMULATION, 4},
    {"gradient accumulation .. more memory", MP_CAUSE_ACCUMULATION, 5},
    {"oom .. gradient accumulation", MP_CAUSE_ACCUMULATION, 4},
    {"out of memory .. gradient accumulation", MP_CAUSE_ACCUMULATION, 4},
    {"memory .. gradient accumulation", MP_CAUSE_ACCUMULATION, 3},
    {"gradient accumulation", MP_CAUSE_ACCUMULATION, 2},
    {"accumulate grad batches", MP_CAUSE_ACCUMULATION, 2},
    {"gradient accumulation .. leak*", MP_CAUSE_ACCUMULATION, 5},
    {"grad* accum*", MP_CAUSE_ACCUMULATION, 2},
    {"accumulat* grad*", MP_CAUSE_ACCUMULATION, 2},
    {"accumulation", MP_CAUSE_ACCUMULATION, 1},
    {"accumulat* gradient*", MP_CAUSE_ACCUMULATION, 3},
    {"accumulat* gradient* .. increas*", MP_CAUSE_ACCUMULATION, 3},
    {"accumulation steps .. 1 .. work*", MP_CAUSE_ACCUMULATION, 4},
    {"second micro batch", MP_CAUSE_ACCUMULATION, 4},
    {"number of micro batches", MP_CAUSE_ACCUMULATION, 3},

    {"other process*", MP_CAUSE_OTHER_PROCESS, 4},
    {"another process*", MP_CAUSE_OTHER_PROCESS, 4},
    {"other user*", MP_CAUSE_OTHER_PROCESS, 4},
    {"another user", MP_CAUSE_OTHER_PROCESS, 4},
    {"someone else .. us*", MP_CAUSE_OTHER_PROCESS, 4},
    {"someone else .. run*", MP_CAUSE_OTHER_PROCESS, 4},
    {"us* by someone else", MP_CAUSE_OTHER_PROCESS, 4},
    {"somebody else .. us*", MP_CAUSE_OTHER_PROCESS, 4},
    {"somebody else .. run*", MP_CAUSE_OTHER_PROCESS, 4},
    {"another program", MP_CAUSE_OTHER_PROCESS, 4},
    {"other program*", MP_CAUSE_OTHER_PROCESS, 4},
    {"other training", MP_CAUSE_OTHER_PROCESS, 3},
    {"another training", MP_CAUSE_OTHER_PROCESS, 3},
    {"already a training", MP_CAUSE_OTHER_PROCESS, 4},
    {"zombie*", MP_CAUSE_OTHER_PROCESS, 5},
    {"orphan*", MP_CAUSE_OTHER_PROCESS, 4},
    {"previous run", MP_CAUSE_OTHER_PROCESS, 4},
    {"another notebook", MP_CAUSE_OTHER_PROCESS, 4},
    {"other notebook*", MP_CAUSE_OTHER_PROCESS, 4},
    {"another job", MP_CAUSE_OTHER_PROCESS, 4},
    {"other job*", MP_CAUSE_OTHER_PROCESS, 4},
    {"other people .. us*", MP_CAUSE_OTHER_PROCESS, 4},
    {"other people .. run*", MP_CAUSE_OTHER_PROCESS, 4},
    {"other people's", MP_CAUSE_OTHER_PROCESS, 3},
    {"two .. in parallel", MP_CAUSE_OTHER_PROCESS, 3},
    {"two jobs", MP_CAUSE_OTHER_PROCESS, 4},
    {"concurrent*", MP_CAUSE_OTHER_PROCESS, 3},
    {"hold* .. gpu memory", MP_CAUSE_OTHER_PROCESS, 4},
    {"second process", MP_CAUSE_OTHER_PROCESS, 3},
    {"background process*", MP_CAUSE_OTHER_PROCESS, 4},
    {"another terminal", MP_CAUSE_OTHER_PROCESS, 4},
    {"another session", MP_CAUSE_OTHER_PROCESS, 4},
    {"another instance", MP_CAUSE_OTHER_PROCESS, 4},
    {"another script", MP_CAUSE_OTHER_PROCESS, 4},
    {"previous process*", MP_CAUSE_OTHER_PROCESS, 4},
    {"default* .. @", MP_CAUSE_OTHER_PROCESS, 3},
    {"cancel*", MP_CAUSE_OTHER_PROCESS, 2},
    {"interrupt*", MP_CAUSE_OTHER_PROCESS, 2},
    {"ctrl c", MP_CAUSE_OTHER_PROCESS, 3},
    {"ctrl+c", MP_CAUSE_OTHER_PROCESS, 3},
    {"ctrl z", MP_CAUSE_OTHER_PROCESS, 3},
    {"shared gpu*", MP_CAUSE_OTHER_PROCESS, 3},
    {"still occup*", MP_CAUSE_OTHER_PROCESS, 3},
    {"process* .. still running", MP_CAUSE_OTHER_PROCESS, 4},
    {"wrong gpu", MP_CAUSE_OTHER_PROCESS, 3},
    {"kill* the process*", MP_CAUSE_OTHER_PROCESS, 2},
    {"kill* .. processes", MP_CAUSE_OTHER_PROCESS, 2},
    {"kill .. process*", MP_CAUSE_OTHER_PROCESS, 2},
    {"kill -9", MP_CAUSE_OTHER_PROCESS, 3},
    {"fuser", MP_CAUSE_OTHER_PROCESS, 4},
    {"/dev/nvidia0: ", MP_CAUSE_OTHER_PROCESS, 3}, /* its output */
    {"restart* .. kernel", MP_CAUSE_OTHER_PROCESS, 4},
    {"restart* .. notebook", MP_CAUSE_OTHER_PROCESS, 3},
    {"jupyter", MP_CAUSE_OTHER_PROCESS, 1},
    {"same gpu", MP_CAUSE_OTHER_PROCESS, 2},
    {"same time", MP_CAUSE_OTHER_PROCESS, 1},
    {"simultaneous*", MP_CAUSE_OTHER_PROCESS, 2},
    {"shared server", MP_CAUSE_OTHER_PROCESS, 3},
    {"gpu .. is busy", MP_CAUSE_OTHER_PROCESS, 4},
    {"gpu .. occupied", MP_CAUSE_OTHER_PROCESS, 4},
    {"occupied by", MP_CAUSE_OTHER_PROCESS, 4},
    {"occupied by .. model", MP_CAUSE_OTHER_PROCESS, -4},
    {"already occupied", MP_CAUSE_OTHER_PROCESS, 4},
    {"already used", MP_CAUSE_OTHER_PROCESS, 2},
    {"already using", MP_CAUSE_OTHER_PROCESS, 3},
    {"consumed already", MP_CAUSE_OTHER_PROCESS, 3},
    {"tak* all the memory", MP_CAUSE_OTHER_PROCESS, 3},
    {"@ .. full", MP_CAUSE_OTHER_PROCESS, 3},
    {"fully utilized by another", MP_CAUSE_OTHER_PROCESS, 4},
    {"cuda visible devices", MP_CAUSE_OTHER_PROCESS, 1},
    {"nvidia smi", MP_CAUSE_OTHER_PROCESS, 1},
    {"still hold*", MP_CAUSE_OTHER_PROCESS, 2},
    {"vllm .. same", MP_CAUSE_OTHER_PROCESS, 2},
    {"\xE5\x8D\xA0\xE7\x94\xA8", MP_CAUSE_OTHER_PROCESS, 2}, /* occupy */
    {"\xE5\x85\xB6\xE4\xBB\x96\xE8\xBF\x9B\xE7\xA8\x8B", MP_CAUSE_OTHER_PROCESS,
     4}, /* other process */

    {"cuda context*", MP_CAUSE_CONTEXT, 5},
    {"context* .. @", MP_CAUSE_CONTEXT, 4},
    {"context on", MP_CAUSE_CONTEXT, 3},
    {"extra memory", MP_CAUSE_CONTEXT, 2},
    {"extra process*", MP_CAUSE_CONTEXT, 3},
    {"additional process*", MP_CAUSE_CONTEXT, 4},
    {"process* .. @", MP_CAUSE_CONTEXT, 2},
    {"@ .. process*", MP_CAUSE_CONTEXT, 3},
    {"multiple process* .. @", MP_CAUSE_CONTEXT, 4},
    {"all process* .. @", MP_CAUSE_CONTEXT, 4},
    {"rank* .. @", MP_CAUSE_CONTEXT, 3},
    {"rank 0 gpu", MP_CAUSE_CONTEXT, 2},
    {"small part .. @", MP_CAUSE_CONTEXT, 4},
    {"memory of @", MP_CAUSE_CONTEXT, 2},
    {"to the @", MP_CAUSE_CONTEXT, 3},
    {"to gpu 0", MP_CAUSE_CONTEXT, 3},
    {"don't use @", MP_CAUSE_CONTEXT, 3},
    {"@ always", MP_CAUSE_CONTEXT, 3},
    {"@ .. other gpu*", MP_CAUSE_CONTEXT, 3},
    {"@ .. more memory", MP_CAUSE_CONTEXT, 3},
    {"@ out of memory", MP_CAUSE_CONTEXT, 3},
    {"memory on @", MP_CAUSE_CONTEXT, 2},
    {"space on @", MP_CAUSE_CONTEXT, 3},
    {"each .. on @", MP_CAUSE_CONTEXT, 3},
    {"initializing cuda", MP_CAUSE_CONTEXT, 3},
    {"each worker", MP_CAUSE_CONTEXT, 2},
    {"per process", MP_CAUSE_CONTEXT, 1},

    {"large vocab*", MP_CAUSE_LOGITS, 4},
    {"vocab size", MP_CAUSE_LOGITS, 3},
    {"vocab*", MP_CAUSE_LOGITS, 2},
    {"logits", MP_CAUSE_LOGITS, 3},
    {"cross entropy", MP_CAUSE_LOGITS, 2},
    {"lm head", MP_CAUSE_LOGITS, 3},
    {"log softmax", MP_CAUSE_LOGITS, 3},

    {"nccl .. out of memory", MP_CAUSE_NCCL, 3},
    {"nccl .. oom", MP_CAUSE_NCCL, 3},
    {"nccl error", MP_CAUSE_NCCL, 2},
    {"nccl buffsize", MP_CAUSE_NCCL, 4},
    {"communicator*", MP_CAUSE_NCCL, 3},
    {"nccl buffer*", MP_CAUSE_NCCL, 5},
    {"process group*", MP_CAUSE_NCCL, 2},
    {"all to all", MP_CAUSE_NCCL, 2},
    {"unhandled cuda error", MP_CAUSE_NCCL, 2},

    {"optimizer state*", MP_CAUSE_OPTIMIZER_STATE, 4},
    {"real optimizer", MP_CAUSE_OPTIMIZER_STATE, 4},
    {"optimizer step", MP_CAUSE_OPTIMIZER_STATE, 3},
    {"second iteration", MP_CAUSE_OPTIMIZER_STATE, 3},
    {"second step", MP_CAUSE_OPTIMIZER_STATE, 3},
    {"second .. batch", MP_CAUSE_OPTIMIZER_STATE, 3},
    {"first .. batch .. second", MP_CAUSE_OPTIMIZER_STATE, 3},
    {"first iteration*", MP_CAUSE_OPTIMIZER_STATE, 1},
    {"first step", MP_CAUSE_OPTIMIZER_STATE, 2},
    {"first optimizer", MP_CAUSE_OPTIMIZER_STATE, 3},
    {"optimizer.step", MP_CAUSE_OPTIMIZER_STATE, 3},
    {"adam .. memory", MP_CAUSE_OPTIMIZER_STATE, 2},
    {"adam .. sgd", MP_CAUSE_OPTIMIZER_STATE, 4},
    {"sgd .. adam", MP_CAUSE_OPTIMIZER_STATE, 4},
    {"full fine tun*", MP_CAUSE_OPTIMIZER_STATE, 3},
    {"full finetun*", MP_CAUSE_OPTIMIZER_STATE, 3},
    {"full parameter*", MP_CAUSE_OPTIMIZER_STATE, 2},
    {"full training", MP_CAUSE_OPTIMIZER_STATE, 2},
    {"sft full", MP_CAUSE_OPTIMIZER_STATE, 3},
    {"full sft", MP_CAUSE_OPTIMIZER_STATE, 3},
    {"freez*", MP_CAUSE_OPTIMIZER_STATE, 2}, /* what is frozen has no gradient and no state */
    {"full\xE5\xBE\xAE\xE8\xB0\x83", MP_CAUSE_OPTIMIZER_STATE, 3}, /* full tuning */
    {"\xE5\x85\xA8\xE9\x87\x8F", MP_CAUSE_OPTIMIZER_STATE, 2},     /* all, full */
    {"adamw .. memory", MP_CAUSE_OPTIMIZER_STATE, 2},
    {"offload* .. optimizer", MP_CAUSE_OPTIMIZER_STATE, 2},
    {"8bit adam", MP_CAUSE_OPTIMIZER_STATE, 2},
    {"8 bit adam", MP_CAUSE_OPTIMIZER_STATE, 2},
    {"initialize optimizer", MP_CAUSE_OPTIMIZER_STATE, 3},
    {"zero optimizer", MP_CAUSE_OPTIMIZER_STATE, 1},
    {"\xE5\x85\xA8\xE5\x8F\x82", MP_CAUSE_OPTIMIZER_STATE, 2}, /* full parameters */

    {"fragment*", MP_CAUSE_FRAGMENTATION, 5},
    {"expandable segments", MP_CAUSE_FRAGMENTATION, 2},
    {"max split size*", MP_CAUSE_FRAGMENTATION, 2},
    {"empty cache .. help*", MP_CAUSE_FRAGMENTATION, 2},
    {"empty cache .. work*", MP_CAUSE_FRAGMENTATION, 2},
    {"empty cache .. fix*", MP_CAUSE_FRAGMENTATION, 2},
    {"empty cache .. solve*", MP_CAUSE_FRAGMENTATION, 3},
    {"dynamic shape*", MP_CAUSE_FRAGMENTATION, 2},
    {"variable length*", MP_CAUSE_FRAGMENTATION, 2},
    {"variable size*", MP_CAUSE_FRAGMENTATION, 2},
    {"\xE7\xA2\x8E\xE7\x89\x87", MP_CAUSE_FRAGMENTATION, 4}, /* fragment */

    {"memory fraction", MP_CAUSE_MEMORY_LIMIT, 4},
    {"vgpu", MP_CAUSE_MEMORY_LIMIT, 4},
    {"hami", MP_CAUSE_MEMORY_LIMIT, 4},
    {"mig slice", MP_CAUSE_MEMORY_LIMIT, 4},
    {"mig device", MP_CAUSE_MEMORY_LIMIT, 4},
    {"gpu memory limit", MP_CAUSE_MEMORY_LIMIT, 3},
    {"memory limit", MP_CAUSE_MEMORY_LIMIT, 1},
    {"quota", MP_CAUSE_MEMORY_LIMIT, 3},
    {"unified ram", MP_CAUSE_MEMORY_LIMIT, 2},
    {"should have .. available", MP_CAUSE_MEMORY_LIMIT, 2},

    {"pin memory", MP_CAUSE_HOST_MEMORY, 1},
    {"pinned memory", MP_CAUSE_HOST_MEMORY, 4},
    {"pinned", MP_CAUSE_HOST_MEMORY, 2},
    {"page file", MP_CAUSE_HOST_MEMORY, 4},
    {"pagefile", MP_CAUSE_HOST_MEMORY, 4},
    {"paging file", MP_CAUSE_HOST_MEMORY, 5},
    {"num worker* .. 0", MP_CAUSE_HOST_MEMORY, 4}, /* each worker is a process with its libraries */
    {"workers .. to 0", MP_CAUSE_HOST_MEMORY, 4},
    {"insufficient ram", MP_CAUSE_HOST_MEMORY, 4},
    {"unsufficient ram", MP_CAUSE_HOST_MEMORY, 4},
    {"not enough ram", MP_CAUSE_HOST_MEMORY, 4},
    {"reserved ram", MP_CAUSE_HOST_MEMORY, 2},
    {"ram error", MP_CAUSE_HOST_MEMORY, 3},
    {"error ram", MP_CAUSE_HOST_MEMORY, 3},
    {"winerror 1455", MP_CAUSE_HOST_MEMORY, 6}, /* the commit limit */
    {"error 1455", MP_CAUSE_HOST_MEMORY, 6},
    {"swap", MP_CAUSE_HOST_MEMORY, 3},
    {"wsl*", MP_CAUSE_HOST_MEMORY, 3},
    {"wslconfig", MP_CAUSE_HOST_MEMORY, 3},
    {"ulimit", MP_CAUSE_HOST_MEMORY, 3},
    {"system memory", MP_CAUSE_HOST_MEMORY, 2},
    {"system ram", MP_CAUSE_HOST_MEMORY, 3},
    {"host memory", MP_CAUSE_HOST_MEMORY, 4},
    {"cpu memory", MP_CAUSE_HOST_MEMORY, 3},
    {"cpu oom", MP_CAUSE_HOST_MEMORY, 4},
    {"gb ram", MP_CAUSE_HOST_MEMORY, 1},
    {"ram", MP_CAUSE_HOST_MEMORY, 1},
    {"gpu ram", MP_CAUSE_HOST_MEMORY, -2}, /* the card's */
    {"video ram", MP_CAUSE_HOST_MEMORY, -2},
    {"of ram", MP_CAUSE_HOST_MEMORY, 2},
    {"oom on ram", MP_CAUSE_HOST_MEMORY, 5},
    {"ram is full", MP_CAUSE_HOST_MEMORY, 3},
    {"cpu .. memory .. increas*", MP_CAUSE_HOST_MEMORY, 4},
    {"kill* by .. system", MP_CAUSE_HOST_MEMORY, 5},
    {"kill* by os", MP_CAUSE_HOST_MEMORY, 5},
    {"process is killed", MP_CAUSE_HOST_MEMORY, 3},
    {"process was killed", MP_CAUSE_HOST_MEMORY, 3},
    {"process gets killed", MP_CAUSE_HOST_MEMORY, 3},
    {"system memory .. blow*", MP_CAUSE_HOST_MEMORY, 3},
    {"replay buffer", MP_CAUSE_HOST_MEMORY, 3}, /* kept in host memory */
    {"replaybuffer", MP_CAUSE_HOST_MEMORY, 3},
    {"replay memory", MP_CAUSE_HOST_MEMORY, 3},
    {"shm", MP_CAUSE_HOST_MEMORY, 3},
    {"oom killer", MP_CAUSE_HOST_MEMORY, 5},
    {"dataloader worker .. killed", MP_CAUSE_HOST_MEMORY, 5},
    {"bus error", MP_CAUSE_HOST_MEMORY, 4},
    {"ran out of ram", MP_CAUSE_HOST_MEMORY, 5},
    {"out of ram", MP_CAUSE_HOST_MEMORY, 4},
    {"all available ram", MP_CAUSE_HOST_MEMORY, 5},
    {"ram usage", MP_CAUSE_HOST_MEMORY, 3},
    {"killed", MP_CAUSE_HOST_MEMORY, 4}, /* by the kernel: the driver kills nobody */
    {"i killed", MP_CAUSE_HOST_MEMORY, -4},
    {"sigkill", MP_CAUSE_HOST_MEMORY, 3},
    {"signal 9", MP_CAUSE_HOST_MEMORY, 4},
    {"exit code 137", MP_CAUSE_HOST_MEMORY, 5},
    {"exitcode 9", MP_CAUSE_HOST_MEMORY, 4},
    {"code 9", MP_CAUSE_HOST_MEMORY, 4},
    {"cpu out of memory", MP_CAUSE_HOST_MEMORY, 5},
    {"cpu ram", MP_CAUSE_HOST_MEMORY, 3},
    {"shared memory", MP_CAUSE_HOST_MEMORY, 3},
    {"cpu\xE5\x86\x85\xE5\xAD\x98", MP_CAUSE_HOST_MEMORY, 4},                      /* memory */
    {"\xE7\xB3\xBB\xE7\xBB\x9F\xE5\x86\x85\xE5\xAD\x98", MP_CAUSE_HOST_MEMORY, 4}, /* system's */
    {"\xE5\x85\xB1\xE4\xBA\xAB\xE5\x86\x85\xE5\xAD\x98", MP_CAUSE_HOST_MEMORY, 4}, /* shared */
    {"virtual memory", MP_CAUSE_HOST_MEMORY, 3},
    {"\xE8\x99\x9A\xE6\x8B\x9F\xE5\x86\x85\xE5\xAD\x98", MP_CAUSE_HOST_MEMORY,
     4}, /* virtual memory */

    {"not compatible with the current", MP_CAUSE_NOT_MEMORY, 5},
    {"incompatib*", MP_CAUSE_NOT_MEMORY, 3},
    {"device side assert", MP_CAUSE_NOT_MEMORY, 5},
    {"out of bounds", MP_CAUSE_NOT_MEMORY, 3},
    {"out of range", MP_CAUSE_NOT_MEMORY, 3},
    {"wrong cuda version", MP_CAUSE_NOT_MEMORY, 4},
    {"version of torch", MP_CAUSE_NOT_MEMORY, 3},
    {"version of pytorch", MP_CAUSE_NOT_MEMORY, 3},
    {"version of cuda", MP_CAUSE_NOT_MEMORY, 3},
    {"driver version", MP_CAUSE_NOT_MEMORY, 1},
    {"version mismatch", MP_CAUSE_NOT_MEMORY, 4},
    {"insufficient driver", MP_CAUSE_NOT_MEMORY, 5},
    {"timeout", MP_CAUSE_NOT_MEMORY, 1},
    {"timed out", MP_CAUSE_NOT_MEMORY, 1},
};

/* What kind of job it is: no evidence by itself, but other rules ask. */
static const char *const distributed_words[] = {"rank0",
                                                "rank1",
                                                "rank 0",
                                                "rank 1",
                                                "torchrun",
                                                "local rank",
                                                "world size",
                                                "deepspeed",
                                                "fsdp",
                                                "distributeddataparallel",
                                                "torch.distributed",
                                                "nproc per node",
                                                "nccl warn",
                                                "nccl info",
                                                "nccl error",
                                                "processgroupnccl"};
static const char *const single_card_words[] = {
    "single gpu",  "single card", "one gpu", "single a100",
    "single 3090", "single 4090", "1 gpu",   "\xE5\x8D\x95\xE5\x8D\xA1"};
static const char *const training_words[] = {"train*",
                                             "fine tun*",
                                             "finetun*",
                                             "backward",
                                             "epoch*",
                                             "sft",
                                             "optimizer*",
                                             "\xE8\xAE\xAD\xE7\xBB\x83",
                                             "\xE5\xBE\xAE\xE8\xB0\x83"};
static const char *const inference_words[] = {
    "inference", "generate", "sampling", "demo",
    "infer.*",   "infer.sh", "chat",     "\xE6\x8E\xA8\xE7\x90\x86",
    "webui",     "serving",  "txt2img"};

static const char *const picture_words[] = {
    "webui",     "txt2img", "img2img",    "upscal*",        "hires*",           "vae",
    "diffusion", "comfyui", "resolution", "style transfer", "super resolution", "inpaint*",
    "deblur*",   "denois*", "dehaz*"};

static const char *const detection_words[] = {
    "mask rcnn*",   "faster rcnn*",  "cascade rcnn*", "cascade mask*",  "mask r cnn",
    "faster r cnn", "retinanet*",    "detectron*",    "mmdet*",         "bbox*",
    "gt box*",      "bounding box*", "instance seg*", "object detect*", "yolo*",
    "pv rcnn*",     "pvrcnn*",       "pcdet*",        "voxel*"};

/* Inputs whose length differs from sample to sample. */
static const char *const speech_words[] = {"asr",         "speech*", "utterance*", "audio*",
                                           "librispeech", "espnet",  "icefall",    "wav2vec*"};

static const char *const flat_words[] = {"deepspeed", "zero2", "zero3", "zero 2", "zero 3"};
static const char *const full_words[] = {"full fine*",
                                         "full tun*",
                                         "full param*",
                                         "full",
                                         "\xE5\x85\xA8\xE5\x8F\x82",
                                         "\xE5\x85\xA8\xE9\x87\x8F"};
static const char *const adapter_words[] = {"lora", "qlora", "peft", "adapter*",
                                            "finetuning type: lora"};
static const char *const batch_one_words[] = {
    "batch size 1",  "batch size=1",    "batch size = 1",  "batch size of 1",
    "batch size: 1", "batch size is 1", "batch size to 1", "batch size\": 1",
    "batchsize=1",   "batchsize 1",     "batch=1",         "bs=1",
    "bs 1",          "batch of 1"};
static const char *const batch_one_fits_words[] = {
    "work* .. batch size 1",    "work* .. batch size of 1",
    "success* .. batch size 1", "success* .. batch size of 1",
    "batch size 1 .. work*",    "batch size of 1 .. work*",
    "batch size 1 but",         "only .. batch size 1",
    "only .. batch size of 1",  "batch size=1 .. work*"};
/* Behind a number: cards of a machine. */
static const char *const count_words[] = {
    "x a100", "xa100",  "*a100",  "* a100", "x h100", "xh100", "*h100",  "x a800",
    "xa800",  "*a800",  "* a800", "x v100", "xv100",  "*v100", "x h800", "*h800",
    "x h20",  "x 3090", "*3090",  "x 4090", "*4090",  "xl40*", "x l40*"};

static const char *const four_bit_words[] = {"load in 4bit", "4bit",  "4 bit", "int4",
                                             "nf4",          "qlora", "gptq",  "awq"};
static const char *const eight_bit_words[] = {"load in 8bit", "load 8bit", "8bit", "int8", "fp8"};
static const char *const single_words[] = {"float32",     "fp32",           "dtype=float",
                                           "dtype float", "full precision", "single precision"};

/* Nominal memory of cards that are named, in GB: only to judge whether a model of a named size can
 * fit. The first match counts. */
static const struct {
    const char *words;
    unsigned gb;
} cards[] = {
    {"h200", 141},      {"b200", 180},    {"h20", 96},          {"h100", 80},     {"h800", 80},
    {"a800", 80},       {"a100 80", 80},  {"a100 sxm4 80", 80}, {"80gb", 80},     {"80g", 80},
    {"80 gb", 80},      {"a100 40", 40},  {"40gb", 40},         {"40g", 40},      {"a100", 80},
    {"l40*", 48},       {"a6000", 48},    {"a40", 48},          {"48gb", 48},     {"5090", 32},
    {"v100 32", 32},    {"32gb gpu", 32}, {"4090", 24},         {"3090", 24},     {"a10g", 24},
    {"a10", 24},        {"l4", 24},       {"24gb", 24},         {"24 gb", 24},    {"4080", 16},
    {"v100", 32},       {"p100", 16},     {"t4", 16},           {"16gb gpu", 16}, {"16gb vram", 16},
    {"16 gb vram", 16}, {"colab", 16},    {"3060", 12},         {"4070", 12},     {"12gb", 12},
    {"2080ti", 11},     {"2080 ti", 11},  {"1080ti", 11},       {"1080 ti", 11},  {"3080", 10},
    {"3070", 8},        {"4060", 8},      {"8gb vram", 8},      {"8gb gpu", 8},   {"6gb vram", 6},
    {"4gb vram", 4},
};

static bool is_letter(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9');
}

static bool is_space(char c)
{
    return c == ' ' || c == '\n' || c == '-' || c == '_';
}

/* How many bytes of the text name the first card; 0: none does. */
static size_t first_card_length(const char *at, const char *end)
{
    static const char *const names[] = {
        "gpu 0",    "gpu0",   "gpu:0",     "gpu #0",      "gpu id 0", "cuda:0", "cuda 0",
        "device 0", "card 0", "first gpu", "the 1st gpu", "gpu id=0", "cuda0"};
    for (size_t i = 0; i < MP_ARRAY_LEN(names); i++) {
        const size_t n = strlen(names[i]);
        size_t k = 0;
        while (k < n && at + k < end &&
               (at[k] == names[i][k] || (names[i][k] == ' ' && is_space(at[k])))) {
            k++;
        }
        if (k == n) {
            return n;
        }
    }
    return 0;
}

/* Where the phrase that begins at `at` ends; NULL when it is not there. The end of a word must be
 * the end of a word of the text unless `*` follows. */
static const char *match_end(const char *at, const char *end, const char *words)
{
    bool word = false; /* the last thing matched was a letter of a word */
    for (;;) {
        if (*words == '\0') {
            return !word || at == end || !is_letter(*at) ? at : NULL;
        }
        if (words[0] == '*') {
            while (at < end && is_letter(*at)) {
                at++;
            }
            words++;
            word = false;
        } else if (words[0] == '#') {
            const char *const begin = at;
            while (at < end && *at >= '0' && *at <= '9') {
                at++;
            }
            if (at == begin) {
                return NULL;
            }
            words++;
            word = true;
        } else if (words[0] == '@') {
            const size_t n = first_card_length(at, end);
            if (n == 0) {
                return NULL;
            }
            at += n;
            words++;
            word = true;
        } else if (strncmp(words, " .. ", 4) == 0) {
            if (word && at < end && is_letter(*at)) {
                return NULL;
            }
            const char *const limit = at + MP_MIN((ptrdiff_t)GAP, end - at);
            for (; at < limit; at++) {
                if (at + 1 < end && at[0] == '\n' && at[1] == '\n') {
                    return NULL;
                }
                const char *const rest =
                    !is_letter(at[0]) && at + 1 < end ? match_end(at + 1, end, words + 4) : NULL;
                if (rest != NULL) {
                    return rest;
                }
            }
            return NULL;
        } else if (words[0] == ' ') {
            if (at == end || !is_space(*at)) {
                return NULL;
            }
            while (at < end && is_space(*at)) {
                at++;
            }
            words++;
            word = false;
        } else {
            if (at == end || *at != *words) {
                return NULL;
            }
            word = is_letter(*words);
            at++;
            words++;
        }
    }
}

static bool match(const char *at, const char *end, const char *words)
{
    return match_end(at, end, words) != NULL;
}

/* The part of the plain text that is read for words: all of a report; of a long log the head and
 * the surroundings of the failure. */
struct window {
    char *text;  /* without library code and PyTorch's hint */
    char *prose; /* and without settings and commands */
    size_t length;
    size_t head; /* bytes of the head; behind it follows the part that begins at `from` of the plain
                    text */
    size_t from;
};

static void mask_in(char *text, size_t begin, size_t length)
{
    for (size_t i = begin; i < begin + length; i++) {
        if (text[i] != '\n') {
            text[i] = '\x01';
        }
    }
}

static void mask(struct window *w, size_t begin, size_t length)
{
    mask_in(w->text, begin, MP_MIN(length, w->length - begin));
}

/* PyTorch's own advice, up to the name of the variable or the address of the page, and what a
 * launcher says of the other ranks. */
static void mask_hints(struct window *w)
{
    static const char *const begins[] = {
        "if reserved memory is", "if reserved but unallocated",  "try setting max split size",
        "try setting pytorch*",  "see documentation for memory", "pytorch limit",
        "forcefully terminating"};
    static const char *const ends[] = {"alloc conf", "environment variables", "memory management",
                                       "memory fraction", "zombies"};
    const char *const end = w->text + w->length;
    for (size_t i = 0; i < w->length; i++) {
        const char c = w->text[i];
        if (strchr("itspf", c) == NULL || c == '\0') {
            continue;
        }
        for (size_t k = 0; k < MP_ARRAY_LEN(begins); k++) {
            if (c != begins[k][0] || !match(w->text + i, end, begins[k])) {
                continue;
            }
            const size_t reach = MP_MIN(w->length - i, (size_t)420);
            size_t length = MP_MIN(reach, (size_t)60);
            for (size_t j = 0; j < reach; j++) {
                for (size_t e = 0; e < MP_ARRAY_LEN(ends); e++) {
                    if (w->text[i + j] == ends[e][0] && match(w->text + i + j, end, ends[e])) {
                        length = MP_MIN(reach, j + 24);
                    }
                }
            }
            mask(w, i, length);
            break;
        }
    }
}

/* "   376      code": source lines of boxed and notebook tracebacks. */
static bool is_numbered_code(const char *line, size_t n)
{
    size_t at = 0, digits = 0;
    while (at < n && line[at] == ' ') {
        at++;
    }
    while (at < n && line[at] >= '0' && line[at] <= '9') {
        at++;
        digits++;
    }
    return digits > 0 && digits < 7 && at + 2 < n && line[at] == ' ' && line[at + 1] == ' ';
}

/* Frames of installed packages and the code line behind each, numbered code: not the reporter's
 * words. */
static void mask_library_frames(struct window *w)
{
    static const char *const marks[] = {"site-packages", "dist-packages", "/lib/python",
                                        "\\lib\\python"};
    size_t begin = 0, left = 0;
    while (begin < w->length) {
        const char *const newline = memchr(w->text + begin, '\n', w->length - begin);
        const size_t n =
            newline != NULL ? (size_t)(newline - (w->text + begin)) : w->length - begin;
        bool frame = false;
        for (size_t i = 0; i < MP_ARRAY_LEN(marks) && n < 600; i++) {
            frame = frame || mp_doctor_find(w->text + begin, n, marks[i]) != NULL;
        }
        /* a library may be named in an error's own sentence, too */
        frame = frame && mp_doctor_find(w->text + begin, n, ".py") != NULL;
        if (frame) {
            left = 2;
        }
        if (is_numbered_code(w->text + begin, n)) {
            mask(w, begin, n);
        }
        if (left > 0) {
            if (mp_doctor_find(w->text + begin, n, "out of memory") == NULL) {
                mask(w, begin, n);
            }
            left--;
        }
        begin += n + 1;
    }
}

/* "lr=1e-4,", "\"pin_memory\": true", "--save_steps 100", "max_length: 512", "step()": a setting or
 * code with fewer than five plain words, or a command with three options or more. */
static bool is_setting(const char *line, size_t n)
{
    size_t words = 0, assignments = 0, options = 0;
    bool letters_only = true;
    size_t length = 0;
    for (size_t i = 0; i <= n; i++) {
        const char c = i < n ? line[i] : ' ';
        if (c == ' ') {
            words += length >= 2 && letters_only;
            letters_only = true;
            length = 0;
            continue;
        }
        length++;
        letters_only = letters_only && ((c >= 'a' && c <= 'z') || c == ',' || c == '.' ||
                                        c == '\'' || (unsigned char)c >= 0x80);
        const bool key =
            i > 0 && (is_letter(line[i - 1]) || line[i - 1] == '"' || line[i - 1] == '\'');
        const bool option = c == '-' && i + 1 < n && line[i + 1] == '-';
        options += option && (i == 0 || line[i - 1] == ' ');
        assignments += option || c == '=' || (c == '(' && i > 0 && is_letter(line[i - 1])) ||
                       (c == ':' && key && i + 1 < n && line[i + 1] == ' ');
    }
    return (assignments > 0 && words < 5) || options >= 3;
}

/* The first line, when an empty one follows. */
static size_t title_length(const struct window *w)
{
    const char *const end = memchr(w->text, '\n', w->length);
    const size_t n = end != NULL ? (size_t)(end - w->text) : 0;
    return n < 200 && n + 1 < w->length && w->text[n + 1] == '\n' ? n : 0;
}

/* "info 06-20 16:09:23 llm_engine.py:164] …": a logger names the line of code that speaks. */
static bool is_logged(const char *line, size_t n)
{
    const char *const place = mp_doctor_find(line, n, ".py:");
    return place != NULL && place + 4 < line + n && place[4] >= '0' && place[4] <= '9';
}

/* Settings, commands, log lines, and the frames of tracebacks with their line of code (traceback.c
 * reads those). */
static void mask_settings(struct window *w)
{
    size_t begin = w->from == 0 ? title_length(w) : 0,
           code = 0; /* a title is prose, even when it names a setting */
    while (begin < w->length) {
        const char *const line = w->prose + begin;
        const char *const newline = memchr(line, '\n', w->length - begin);
        const size_t n = newline != NULL ? (size_t)(newline - line) : w->length - begin;
        if (mp_doctor_find(line, n, "file \"") != NULL &&
            mp_doctor_find(line, n, ", line ") != NULL) {
            code = 2;
        }
        if (code > 0 || is_setting(line, n) || is_logged(line, n)) {
            mask_in(w->prose, begin, n);
        }
        code -= code > 0;
        begin += n + 1;
    }
}

static bool window_init(struct window *w, struct mp_doctor_case *c)
{
    const struct mp_doctor_text *const text = &c->text;
    const size_t at = text->plain_line[MP_MIN(c->message.line, text->n_lines)];
    *w = (struct window){.from = at > WINDOW_BACK ? at - WINDOW_BACK : 0};
    const size_t to = MP_MIN(text->plain_len, at + WINDOW_AHEAD);
    w->head = MP_MIN(w->from, (size_t)WINDOW_HEAD);
    w->length = w->head + (to - w->from);
    w->text = mp_arena_alloc(c->arena, w->length + 1);
    w->prose = mp_arena_alloc(c->arena, w->length + 1);
    if (w->text == NULL || w->prose == NULL) {
        return false;
    }
    memcpy(w->text, text->plain, w->head);
    memcpy(w->text + w->head, text->plain + w->from, to - w->from);
    mask_hints(w);
    mask_library_frames(w);
    memcpy(w->prose, w->text, w->length);
    mask_settings(w);
    return true;
}

static size_t line_in_window(const struct window *w, const struct mp_doctor_text *text,
                             size_t offset)
{
    const size_t plain = offset < w->head ? offset : w->from + (offset - w->head);
    return mp_doctor_text_plain_line(text, plain) + 1;
}

/* First place where the phrase begins a word; length when there is none. */
static size_t find_phrase(const char *text, size_t length, const char *words)
{
    const char *const end = text + length;
    const bool any = words[0] == '@';
    for (const char *at = text; at < end; at++) {
        at = any ? at : memchr(at, words[0], (size_t)(end - at));
        if (at == NULL) {
            break;
        }
        const bool begins = at == text || !is_letter(at[-1]) || (!any && !is_letter(words[0]));
        if (begins && match(at, end, words)) {
            return (size_t)(at - text);
        }
    }
    return length;
}

static bool any_phrase(const struct window *w, const char *const *words, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (find_phrase(w->text, w->length, words[i]) < w->length) {
            return true;
        }
    }
    return false;
}

static size_t number_at(const struct window *w, size_t at, unsigned *value)
{
    size_t n = 0;
    *value = 0;
    while (at + n < w->length && n < 6 && w->prose[at + n] >= '0' && w->prose[at + n] <= '9') {
        *value = *value * 10 + (unsigned)(w->prose[at + n++] - '0');
    }
    return n;
}

/* "1440x2560", "1024 * 1024": where the text gives the size of a picture; w->length when it does
 * not. */
static size_t picture_size(const struct window *w)
{
    for (size_t i = 0; i < w->length; i++) {
        unsigned height, width;
        if (i > 0 && is_letter(w->prose[i - 1])) {
            continue;
        }
        size_t at = i + number_at(w, i, &height);
        if (height < LEAST_SIDE || height > MOST_SIDE) {
            continue;
        }
        at += at < w->length && w->prose[at] == ' ';
        const size_t sign = at;
        at += at < w->length && (w->prose[at] == 'x' || w->prose[at] == '*');
        at += at + 1 < w->length && w->prose[at] == '\xC3' && w->prose[at + 1] == '\x97' ? 2 : 0;
        if (at == sign) {
            continue;
        }
        at += at < w->length && w->prose[at] == ' ';
        at += number_at(w, at, &width);
        if (width >= LEAST_SIDE && width <= MOST_SIDE &&
            (at == w->length || !is_letter(w->prose[at]))) {
            return i;
        }
    }
    return w->length;
}

/* "batch_size=32", "--batch-size 64": where the text sets a large batch; w->length when it does not.
 */
static size_t large_batch(const struct window *w)
{
    static const char *const names[] = {"batch size", "batch", "batchsize", "bs"};
    const char *const end = w->text + w->length;
    for (size_t i = 1; i < w->length; i++) {
        if (w->text[i] != 'b' || is_letter(w->text[i - 1])) {
            continue;
        }
        for (size_t k = 0; k < MP_ARRAY_LEN(names); k++) {
            const char *at = match_end(w->text + i, end, names[k]);
            while (at != NULL && at < end && strchr(" =:\"'", *at) != NULL && *at != '\0') {
                at++;
            }
            unsigned value = 0;
            while (at != NULL && at < end && *at >= '0' && *at <= '9' && value < 100000) {
                value = value * 10 + (unsigned)(*at++ - '0');
            }
            if (value >= LARGE_BATCH && at < end && *at != '/' && *at != '.') {
                return i;
            }
        }
    }
    return w->length;
}

/* "llama-7b", "13B", "1.3b": the largest size named that a model can have. "gb" and hexadecimal
 * digits do not count. */
static double model_size(const struct window *w)
{
    double most = 0;
    for (size_t i = 1; i < w->length; i++) {
        const char c = w->text[i];
        if (c != 'b' || w->text[i - 1] < '0' || w->text[i - 1] > '9' ||
            (i + 1 < w->length && is_letter(w->text[i + 1]))) {
            continue;
        }
        size_t begin = i;
        while (begin > 0 && ((w->text[begin - 1] >= '0' && w->text[begin - 1] <= '9') ||
                             w->text[begin - 1] == '.')) {
            begin--;
        }
        const char before = begin > 0 ? w->text[begin - 1] : ' ';
        if (i - begin > 5 || (before != ' ' && before != '-' && before != '_' && before != '\n' &&
                              before != '/' && before != '(')) {
            continue;
        }
        double value = 0, place = 0;
        for (size_t k = begin; k < i; k++) {
            if (w->text[k] == '.') {
                place = 1;
            } else if (place > 0) {
                place /= 10;
                value += place * (w->text[k] - '0');
            } else {
                value = value * 10 + (w->text[k] - '0');
            }
        }
        if (value <= 1000 && value > most) {
            most = value;
        }
    }
    return most;
}

/* The number that stands before "xA100" and the like; 0 when there is none. */
static unsigned number_of_cards(const struct window *w)
{
    const char *const end = w->text + w->length;
    for (size_t i = 1; i < w->length; i++) {
        size_t at = i;
        while (at < w->length && w->text[at] == ' ') {
            at++;
        }
        for (size_t k = 0;
             w->text[i - 1] >= '1' && w->text[i - 1] <= '9' && k < MP_ARRAY_LEN(count_words); k++) {
            if (match(w->text + at, end, count_words[k])) {
                const bool tens = i > 1 && w->text[i - 2] >= '0' && w->text[i - 2] <= '9';
                return (unsigned)(w->text[i - 1] - '0') +
                       (tens ? 10 * (unsigned)(w->text[i - 2] - '0') : 0);
            }
        }
    }
    return 0;
}

/* What stands there: in one line, what was masked left out. */
static const char *quote(struct mp_doctor_case *c, const char *at, const char *end,
                         const char *words)
{
    const char *const behind = match_end(at, end, words);
    char *const copy = behind != NULL ? mp_arena_alloc(c->arena, (size_t)(behind - at) + 1) : NULL;
    if (copy == NULL) {
        return words;
    }
    size_t n = 0;
    for (; at < behind; at++) {
        const char ch = (unsigned char)*at <= ' ' ? ' ' : *at;
        if (ch != ' ' || (n > 0 && copy[n - 1] != ' ')) {
            copy[n++] = ch;
        }
    }
    n -= n > 0 && copy[n - 1] == ' ';
    copy[n] = '\0';
    return copy;
}

static void collect(struct mp_doctor_case *c, const struct window *w, const char *text,
                    const struct phrase *table, size_t n, int collected[MP_CAUSES])
{
    for (size_t i = 0; i < n; i++) {
        const enum mp_cause cause = table[i].cause;
        if (collected[cause] >= WORDS_MOST) {
            continue;
        }
        const size_t at = find_phrase(text, w->length, table[i].words);
        if (at == w->length) {
            continue;
        }
        /* what a report is called is what its writer thinks it is about */
        const int title = table[i].weight >= 2 && w->from == 0 && at < title_length(w);
        const int weight = MP_MIN(table[i].weight + title, WORDS_MOST - collected[cause]);
        collected[cause] += weight;
        mp_evidence_add(c, cause, MP_EVIDENCE_WORD, weight, line_in_window(w, &c->text, at),
                        "the text says \"%s\"",
                        quote(c, text + at, text + w->length, table[i].words));
    }
}

void mp_evidence_words(struct mp_doctor_case *c)
{
    struct window w;
    int collected[MP_CAUSES] = {0};
    if (!window_init(&w, c)) {
        return;
    }
    c->distributed = any_phrase(&w, distributed_words, MP_ARRAY_LEN(distributed_words));
    c->single_card = any_phrase(&w, single_card_words, MP_ARRAY_LEN(single_card_words));
    c->training = any_phrase(&w, training_words, MP_ARRAY_LEN(training_words));
    c->inference = !c->training && any_phrase(&w, inference_words, MP_ARRAY_LEN(inference_words));
    c->pictures = any_phrase(&w, picture_words, MP_ARRAY_LEN(picture_words));
    c->detection = any_phrase(&w, detection_words, MP_ARRAY_LEN(detection_words));
    c->speech = any_phrase(&w, speech_words, MP_ARRAY_LEN(speech_words));
    c->flat_buffers = any_phrase(&w, flat_words, MP_ARRAY_LEN(flat_words));
    c->full = any_phrase(&w, full_words, MP_ARRAY_LEN(full_words));
    c->adapters = any_phrase(&w, adapter_words, MP_ARRAY_LEN(adapter_words));
    c->batch_one = any_phrase(&w, batch_one_words, MP_ARRAY_LEN(batch_one_words)) &&
                   !any_phrase(&w, batch_one_fits_words, MP_ARRAY_LEN(batch_one_fits_words));
    c->n_cards = number_of_cards(&w);
    c->bytes_per_weight = any_phrase(&w, four_bit_words, MP_ARRAY_LEN(four_bit_words))     ? 0.5
                          : any_phrase(&w, eight_bit_words, MP_ARRAY_LEN(eight_bit_words)) ? 1
                          : any_phrase(&w, single_words, MP_ARRAY_LEN(single_words))       ? 4
                                                                                           : 2;
    c->n_params_1e9 = model_size(&w);
    for (size_t i = 0; i < MP_ARRAY_LEN(cards) && c->nominal_gb == 0; i++) {
        c->nominal_gb = find_phrase(w.text, w.length, cards[i].words) < w.length ? cards[i].gb : 0;
    }
    collect(c, &w, w.text, code_phrases, MP_ARRAY_LEN(code_phrases), collected);
    collect(c, &w, w.prose, phrases, MP_ARRAY_LEN(phrases), collected);
    const size_t batch = large_batch(&w);
    if (batch < w.length && !c->batch_one && collected[MP_CAUSE_ACTIVATIONS] < 3) {
        mp_evidence_add(c, MP_CAUSE_ACTIVATIONS, MP_EVIDENCE_WORD, 2,
                        line_in_window(&w, &c->text, batch), "the text sets a large batch");
    }
    const size_t size = picture_size(&w);
    if (size < w.length && c->n_params_1e9 <= 0) {
        c->pictures = true;
        mp_evidence_add(c, MP_CAUSE_ACTIVATIONS, MP_EVIDENCE_WORD, 2,
                        line_in_window(&w, &c->text, size), "the text gives the size of a picture");
    }
}
