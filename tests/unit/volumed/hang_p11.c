// SPDX-License-Identifier: Apache-2.0
// A PKCS#11 module whose token does not answer as long as the file $HANG is there: an HSM behind a network that is gone.
#include <p11-kit/pkcs11.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

static CK_RV initialize(void *args)
{
    (void)args;
    return CKR_OK;
}

static CK_RV get_slot_list(unsigned char present, CK_SLOT_ID *slots, CK_ULONG *count)
{
    const struct timespec pause = {.tv_nsec = 10000000};
    (void)present, (void)slots;
    while (access(getenv("HANG"), F_OK) == 0)
        nanosleep(&pause, NULL);
    *count = 0;
    return CKR_OK;
}

static CK_FUNCTION_LIST functions = {.version = {2, 40}, .C_Initialize = initialize, .C_GetSlotList = get_slot_list};

CK_RV C_GetFunctionList(CK_FUNCTION_LIST **out);
CK_RV C_GetFunctionList(CK_FUNCTION_LIST **out)
{
    *out = &functions;
    return CKR_OK;
}
