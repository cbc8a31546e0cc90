// SPDX-License-Identifier: Apache-2.0
// Domain XML (libvirt's formatdomain.html): the smallest machine that runs a sandbox, see
// domain_xml.h.
//
// What is in it, and why:
// - A versioned machine type and a named CPU model that TCG and every x86-64-v2 host offer, so that
// a later QEMU or another node can
//   load what was saved here. Never `host` or `max`.
// - All PCI devices sit on the root bus: nothing is ever hot-plugged, and each root port costs the
// guest boot time.
// - The disk goes through the host's page cache: btrfs checksums and direct I/O do not mix when a
// guest changes a page that is being
//   written. An error stops the guest instead of reaching it, so that a full pool loses nothing.
// - `relabel='no'`: space-noded gives the disk to the uid itself. libvirt would leave its
// book-keeping in extended attributes of
//   disk.raw, which snapshots would carry to sandboxes of other uids, and those could not start.
// - The guest's memory is a file that space-noded hands over (qemu_ram.c); libvirt knows nothing of
// it, and its own memory backend is never touched.
// - A QEMU that waits for a saved state has the same devices as one that boots; only a kernel it
// has not, since that came into the memory once and for all.
// - Whatever ends the guest (power-off, reboot, panic) ends the domain: space-hostd decides what
// comes next.
#include "hostd/noded/domain_xml.h"

#include "hostd/noded/net_wire.h"
#include "hostd/noded/ram_wire.h"
#include "ipc/fill.h"

#include <stdio.h>
#include <stdlib.h>

/*
 * Kernel command line. No console: under emulation every line of it is time. Self-tests of the
 * kernel's cryptography are two thirds of the instructions of a boot. A panic resets, which ends
 * the domain even when the guest has no pvpanic driver.
 */
#define CMDLINE "quiet loglevel=0 panic=-1 tsc=reliable no_timer_check cryptomgr.notests rdinit=/init"

/* Emulated CPUs do not speculate, and the kernel's page table isolation would empty the emulator's
 * TLB at every system call. */
#define CMDLINE_TCG " mitigations=off"

/* TCG's cache of translated code is most of an anonymous memory that a busy guest's emulator has. A
 * boot fills 42 MiB of a larger one; with 32 it takes no more time, with 16 a tenth to a third
 * more. */
#define TB_CACHE_MIB 32

static void put_text(FILE *f, const char *s)
{
    for (; *s; s++)
        switch (*s) {
        case '&': fputs("&amp;", f); break;
        case '<': fputs("&lt;", f); break;
        case '\'': fputs("&apos;", f); break;
        default: fputc(*s, f);
        }
}

/* `before`, the escaped text, `after`. */
static void put(FILE *f, const char *before, const char *text, const char *after)
{
    fputs(before, f);
    put_text(f, text);
    fputs(after, f);
}

static void put_boot(FILE *f, const struct domain_spec *spec)
{
    fputs("<os><type arch='x86_64' machine='" DOMAIN_MACHINE "'>hvm</type>", f);
    if (!spec->kernel) {
        fputs("</os>\n", f);
        return;
    }
    put(f, "<kernel>", spec->kernel, "</kernel>");
    put(f, "<initrd>", spec->initrd, "</initrd>");
    fprintf(f, "<cmdline>%s%s%s</cmdline></os>\n", CMDLINE, spec->accel == NODED_TCG ? CMDLINE_TCG : "", spec->disk ? " root=/dev/vda" : "");
}

static void put_cpu(FILE *f, const struct domain_spec *spec)
{
    fputs("<features><acpi/><apic/>", f);
    if (spec->accel == NODED_TCG)
        fprintf(f, "<tcg><tb-cache unit='MiB'>%d</tb-cache></tcg>", TB_CACHE_MIB);
    fputs("</features>\n<cpu mode='custom' match='exact' check='none'><model "
          "fallback='forbid'>" DOMAIN_CPU "</model></cpu>\n",
          f);
    fputs("<clock offset='utc'><timer name='hpet' present='no'/></clock>\n", f);
}

static void put_disk(FILE *f, const struct domain_spec *spec)
{
    if (!spec->disk)
        return;
    fputs("<disk type='file' device='disk'>"
          "<driver name='qemu' type='raw' cache='writeback' discard='unmap' error_policy='stop' "
          "rerror_policy='stop'/>",
          f);
    put(f, "<source file='", spec->disk, "'/><target dev='vda' bus='virtio'/>");
    fputs("<address type='pci' domain='0' bus='0' slot='2' function='0'/></disk>\n", f);
}

static void put_channels(FILE *f, const struct domain_spec *spec)
{
    fputs("<controller type='virtio-serial' index='0' ports='3'>"
          "<address type='pci' domain='0' bus='0' slot='3' function='0'/></controller>\n",
          f);
    for (unsigned port = 0; port < 2; port++) {
        put(f, "<channel type='unix'><source mode='bind' path='", spec->socket[port], "'/>");
        fprintf(f,
                "<target type='virtio' name='space.%u'/><address type='virtio-serial' "
                "controller='0' bus='0' port='%u'/></channel>\n",
                port, port + 1);
    }
}

static void put_rest(FILE *f)
{
    fputs("<rng model='virtio'><backend model='random'>/dev/urandom</backend>"
          "<address type='pci' domain='0' bus='0' slot='4' function='0'/></rng>\n"
          "<controller type='usb' model='none'/><memballoon model='none'/><panic model='isa'/>\n",
          f);
}

/*
 * libvirt knows nothing of it: the tap is in a namespace that this QEMU was given by us (qemu_ram.c).
 * No option ROM, which only costs start time; one queue and few vectors, since the other end is one
 * process that reads from another one.
 */
static void put_network(FILE *f)
{
    fprintf(f,
            "<qemu:arg value='-netdev'/><qemu:arg value='tap,id=net0,fd=%d'/>"
            "<qemu:arg value='-device'/><qemu:arg value='virtio-net-pci,netdev=net0,id=nic0,mac=%s,"
            "bus=pcie.0,addr=0x5,romfile='/>\n",
            NET_QEMU_TAP, NET_GUEST_MAC);
}

/* Two backends cannot be one memory: the later -machine wins. */
static void put_memory(FILE *f, const struct domain_spec *spec)
{
    fprintf(f,
            "<qemu:commandline><qemu:arg value='-object'/><qemu:arg "
            "value='memory-backend-file,id=ram0,size=%llu,mem-path=" RAM_PLACEHOLDER
            ",share=on'/><qemu:arg value='-machine'/><qemu:arg value='memory-backend=ram0'/>\n",
            (unsigned long long)spec->memory);
    if (spec->disk)
        put_network(f);
    if (!spec->kernel)
        fputs("<qemu:arg value='-incoming'/><qemu:arg value='defer'/>\n", f);
    put(f, "<qemu:env name='LD_PRELOAD' value='", spec->library, "'/>");
    put(f, "<qemu:env name='" RAM_SOCKET_ENV "' value='", spec->ram_socket, "'/>");
    if (spec->fill_file) {
        put(f, "<qemu:env name='" FILL_FILE_ENV "' value='", spec->fill_file, "'/>");
        put(f, "<qemu:env name='" FILL_SOCKET_ENV "' value='", spec->fill_socket, "'/>");
    }
    fputs("</qemu:commandline>\n"
          "<qemu:capabilities><qemu:del capability='cpu-unavailable-features'/>"
          "</qemu:capabilities>\n",
          f);
}

char *domain_xml(const struct domain_spec *spec)
{
    char *text = NULL;
    size_t size = 0;
    FILE *f = open_memstream(&text, &size);
    if (!f)
        return NULL;
    fprintf(f, "<domain type='%s' xmlns:qemu='http://libvirt.org/schemas/domain/qemu/1.0'>", spec->accel == NODED_KVM ? "kvm" : "qemu");
    put(f, "<name>", spec->name, "</name>\n");
    fprintf(f, "<memory unit='b'>%llu</memory><vcpu>%u</vcpu>\n", (unsigned long long)spec->memory, spec->vcpus);
    fputs("<genid/>\n", f);
    put_boot(f, spec);
    put_cpu(f, spec);
    fputs("<on_poweroff>destroy</on_poweroff><on_reboot>destroy</on_reboot><on_crash>destroy</"
          "on_crash>\n<devices>\n",
          f);
    put_disk(f, spec);
    put_channels(f, spec);
    put_rest(f);
    fprintf(f,
            "</devices>\n<seclabel type='static' model='dac' "
            "relabel='no'><label>+%u:+%u</label></seclabel>\n",
            (unsigned)spec->uid, (unsigned)spec->gid);
    put_memory(f, spec);
    fputs("</domain>\n", f);
    if (fclose(f) != 0) {
        free(text);
        return NULL;
    }
    return text;
}
